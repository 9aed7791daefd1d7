"""Which files of a ledger may go: the oldest, once it is too old or too much, and its lives have ended."""

from kvsweep.ledger.ids import POOL
from kvsweep.ledger.state import State
from kvsweep.ledger.store.files import Chain
from kvsweep.ledger.store.pace import Pace


def retire(chain: Chain, state: State, pace: Pace) -> None:
    """Remove files that the retention does not keep. `state` is that after the last event.

    The file behind the one that goes must begin with a snapshot, or the rest could not be folded any more.
    """
    open_lives = {request.key for request in state.requests.values() if request.life != "CLOSED"}
    while len(chain.numbers) > 1:
        size, keep = chain.size(), pace.rotation.keep_bytes
        with chain.using(chain.numbers[1]) as following:
            if following.snapshot(following.header.first - 1) is None:
                return
        with chain.using(chain.numbers[0]) as oldest:
            if size <= keep and not pace.too_old(oldest.last_time()):
                return
            pinned = any(stream.request in open_lives for stream in oldest.streams() if stream.request != POOL)
        if pinned and size <= 2 * keep:
            return
        chain.drop_oldest()
