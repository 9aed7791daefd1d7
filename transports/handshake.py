"""The handshake: two sides show what they hold before anything is sent, and a refusal names every difference (D4)."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from kvsweep.ledger.errors import HandshakeError
from kvsweep.ledger.events import Difference, HandshakeAgreed, HandshakeRefused
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.layout import Layout

PROTOCOL: Final = 1
"""Version of commands and reports on the wire."""

KEEP_MAP_VERSION: Final = 1
"""Version of the keep map: ordered slots of the current view, a row an active layer."""

MUST_BE_EQUAL: Final = (
    "protocol",
    "selection_unit",
    "block_size",
    "dtype",
    "layout_hash",
    "keep_map_version",
    "tp_size",
)


class Capabilities(Struct, frozen=True, kw_only=True):
    """What one side holds. `process_epoch`, `full_blocks` (K), `total_blocks` (N) and `batch_limit` are only recorded.

    source_kinds: what a producer offers, or what a consumer (a rank) can read.
    """

    role: str  # "producer" | "rank"
    protocol: int
    selection_unit: str  # "block", resolved once at start (D3)
    block_size: int  # tokens
    dtype: str
    layout_hash: str
    source_kinds: tuple[str, ...]
    keep_map_version: int
    tp_size: int
    process_epoch: int
    full_blocks: int = 0
    total_blocks: int = 0
    batch_limit: int = 0


def capabilities(
    layout: Layout,
    *,
    role: str,
    selection_unit: str,
    source_kinds: tuple[str, ...],
    tp_size: int,
    process_epoch: int,
    full_blocks: int = 0,
    total_blocks: int = 0,
    batch_limit: int = 0,
) -> Capabilities:
    """Of a side that runs this version on this layout."""
    return Capabilities(
        role=role,
        protocol=PROTOCOL,
        selection_unit=selection_unit,
        block_size=layout.block_size,
        dtype=layout.dtype,
        layout_hash=layout.layout_hash,
        source_kinds=source_kinds,
        keep_map_version=KEEP_MAP_VERSION,
        tp_size=tp_size,
        process_epoch=process_epoch,
        full_blocks=full_blocks,
        total_blocks=total_blocks,
        batch_limit=batch_limit,
    )


def differences(producer: Capabilities, consumer: Capabilities) -> dict[str, tuple[object, object]]:
    """Every field in which the two cannot work together, with the producer's and the consumer's value.

    A kind that the consumer cannot read is a difference (D4, D9). So is a consumer that needs copies where the producer
    has no pool for them, [K, N) being empty (D5): nothing falls back by itself.
    """
    found: dict[str, tuple[object, object]] = {}
    for field in MUST_BE_EQUAL:
        ours, theirs = getattr(producer, field), getattr(consumer, field)
        if ours != theirs:
            found[field] = (ours, theirs)
    if not set(producer.source_kinds) <= set(consumer.source_kinds):
        found["source_kinds"] = (producer.source_kinds, consumer.source_kinds)
    if producer.total_blocks == producer.full_blocks and "source_only" not in consumer.source_kinds:
        found["copy destinations"] = (
            f"none: K = N = {producer.full_blocks}",
            "needed: source_only is not supported",
        )
    return found


def agree(producer: Capabilities, consumer: Capabilities) -> None:
    """Raises HandshakeError with every difference."""
    found = differences(producer, consumer)
    if found:
        raise HandshakeError(found)


def handshake_fact(
    seq: int, number: int, rank: Capabilities, found: Mapping[str, tuple[object, object]]
) -> HandshakeAgreed | HandshakeRefused:
    """The pool's next event about one rank; `found` as `transports.handshake.differences` gives it."""
    if not found:
        theirs = msgspec.json.encode(rank, order="sorted").decode()
        return HandshakeAgreed(request=POOL, seq=seq, peer=f"rank {number}", theirs=theirs)
    listed = tuple(
        Difference(field=field, expected=str(ours), got=str(theirs)) for field, (ours, theirs) in found.items()
    )
    return HandshakeRefused(request=POOL, seq=seq, peer=f"rank {number}", differences=listed)
