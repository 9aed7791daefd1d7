"""Tables of CPU blocks by logical block: '<i4' bytes with HOLE where there is none."""

import numpy as np

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import HOLE, Int32, int32_view


def with_blocks(table: bytes, logical: Int32, blocks: Int32) -> bytes:
    """The table with these entries set; it grows with HOLEs as far as needed."""
    size = max(len(table) // 4, int(logical.max()) + 1 if logical.size else 0)
    grown = np.full(size, HOLE, dtype="<i4")
    grown[: len(table) // 4] = int32_view(table)
    grown[logical] = blocks
    return bytes(grown.tobytes())


def without(table: bytes, logical: Int32) -> bytes:
    """The table with HOLE at these entries."""
    known = logical[logical < len(table) // 4]
    return with_blocks(table, known, np.full(known.size, HOLE, dtype=np.int32))


def merged(under: bytes, over: bytes) -> bytes:
    """Entries of `over`, and those of `under` where it has none."""
    known = int32_view(over)
    at = np.flatnonzero(known != HOLE).astype(np.int32)
    return with_blocks(under, at, known[at])


def blocks_of(*tables: bytes) -> bytes:
    """Every CPU block that stands in the tables, '<i4'."""
    return b"".join(int32_view(table)[int32_view(table) != HOLE].tobytes() for table in tables)


def look_up(table: bytes, ids: bytes) -> bytes | None:
    """'<i4' CPU block of each of the '<i4' logical blocks, none negative; None where one has none."""
    if compiled.sets is not None:
        found: bytes | None = compiled.sets.look_up(table, ids)
        return found
    known, wanted = int32_view(table), int32_view(ids)
    if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < known.size:
        return None
    blocks = known[wanted]
    return None if bool((blocks == HOLE).any()) else blocks.tobytes()


def leading(table: bytes) -> int:
    """Logical blocks from 0 on without a gap."""
    known = int32_view(table)
    holes = np.flatnonzero(known == HOLE)
    return int(holes[0]) if holes.size else int(known.size)
