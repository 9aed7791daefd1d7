"""Which files of a ledger may go: the oldest, once it is too old or too much, and its lives have ended."""

import os

from kvsweep.ledger.ids import POOL
from kvsweep.ledger.state import State
from kvsweep.ledger.store_chain import Chain
from kvsweep.ledger.store_pace import Pace
from kvsweep.ledger.store_segment import GroupSegment


def retire(chain: Chain, state: State, pace: Pace) -> None:
    """Remove files that the retention does not keep. `state` is that after the last event.

    The file behind the one that goes must begin with a snapshot, or the rest could not be folded any more.
    """
    open_lives = {request.key for request in state.requests.values() if request.life != "CLOSED"}
    while len(chain.numbers) > 1:
        oldest, following = chain.segment(chain.numbers[0]), chain.segment(chain.numbers[1])
        if not isinstance(following, GroupSegment) or following.snapshot(following.header.first - 1) is None:
            return
        size = sum(os.path.getsize(segment.path) for segment in chain.segments())
        keep = pace.rotation.keep_bytes
        old = isinstance(oldest, GroupSegment) and pace.too_old(oldest.last_time())
        if size <= keep and not old:
            return
        pinned = any(stream.request in open_lives for stream in oldest.streams() if stream.request != POOL)
        if pinned and size <= 2 * keep:
            return
        chain.drop_oldest()
