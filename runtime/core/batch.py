"""One atomic batch: events are folded as they are made, so a decision can only make legal ones."""

from typing import Any

from kvsweep.ledger import fold
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.messages import Effect
from kvsweep.ledger.state import RequestState, State


class Batch:
    """State after the events so far, the events, and the effects they cause. The state it began from is untouched."""

    def __init__(self, state: State) -> None:
        self.before = state
        self.state = state
        self.events: list[Event] = []
        self.effects: list[Effect] = []

    def request(self, key: RequestKey) -> RequestState:
        found = self.state.request(key)
        if found is None:
            raise LookupError(f"{key} is not known")
        return found

    def emit(self, kind: type[Event], key: RequestKey, /, **fields: Any) -> None:
        """Fold one more event of the request's stream (or of the pool's, with POOL)."""
        if key == POOL:
            seq = self.state.pool.seq
        else:
            known = self.state.request(key)
            seq = known.seq if known is not None else 0
        event = kind(request=key, seq=seq, **fields)
        self.state = fold.apply(self.state, event)
        self.events.append(event)

    def keys(self) -> tuple[RequestKey, ...]:
        """Requests whose streams the batch touches, in order."""
        found: dict[RequestKey, None] = {}
        latest = POOL
        for event in self.events:
            if event.request is not latest:  # most events of a batch share the key, and a key's hash costs
                latest = event.request
                found[latest] = None
        found.pop(POOL, None)
        return tuple(found)

    def effect(self, effect: Effect) -> None:
        self.effects.append(effect)
