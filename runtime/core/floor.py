"""Operations that ranks may still be spoken to about, so that the floor needs no look at every request."""

from collections.abc import Iterable
from typing import Final, Protocol

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.state import EMPTY, State

BEGINS_OR_ENDS: Final = frozenset(
    {
        e.UploadPlanned,
        e.KeepMapPublished,
        e.UploadAcknowledged,
        e.UploadAborted,
        e.RetainPlanned,
        e.RetainAcknowledged,
        e.RetainAborted,
        e.StoreStarted,
        e.StoreCompleted,
        e.StoreAborted,
        e.TransferSettled,
    }
)
"""Events after which a request has another set of operations."""


class Floor(Protocol):
    """Whoever knows which operations are spoken about."""

    def floor(self, number: int) -> int: ...


class Spoken:
    """Open and settling operations of the adopted state. They are numbered in the order in which they begin."""

    def __init__(self, state: State) -> None:
        self._live: dict[int, None] = {}  # ascending
        self._of: dict[RequestKey, tuple[int, ...]] = {}
        for request in state.requests.values():
            self._look(state, request.key)
        self._live = dict.fromkeys(sorted(self._live))

    def fork(self) -> "Spoken":
        """The same now, apart from here on."""
        twin = Spoken(EMPTY)
        twin._live, twin._of = dict(self._live), dict(self._of)
        return twin

    def adopted(self, state: State, events: Iterable[Event]) -> None:
        """A batch is part of the state now."""
        looked = None
        for event in events:
            if type(event) in BEGINS_OR_ENDS and event.request is not looked:
                looked = event.request
                self._look(state, looked)

    def _look(self, state: State, key: RequestKey) -> None:
        request = state.request(key)
        live = (*request.open_operations(), *request.settling) if request is not None else ()
        before, now = self._of.get(key, ()), tuple([opened.operation.operation_id for opened in live])
        if now == before:
            return
        for number in before:
            if number not in now:
                del self._live[number]
        self._live.update(dict.fromkeys(sorted(set(now).difference(before))))
        if now:
            self._of[key] = now
        else:
            self._of.pop(key, None)

    def floor(self, number: int) -> int:
        """Lowest id that may still be spoken of once `number` begins: below it a rank forgets and refuses."""
        return next(iter(self._live), number)
