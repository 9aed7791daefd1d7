"""What a handshake leaves in the ledger: agreement with what the peer showed, or every difference."""

from collections.abc import Mapping

import msgspec

from kvsweep.ledger.events import Difference, HandshakeAgreed, HandshakeRefused
from kvsweep.ledger.ids import POOL
from kvsweep.transports.handshake import Capabilities


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
