"""A history folded twice, by the reference and by the compiled machine: they have to say the same of every event."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.ledger.walks import Walk
from tests.ledger.worlds import TWO_LAYERS, WITH_SLIDING

from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply
from kvsweep.ledger.state import EMPTY, State
from kvsweep.ledger.store.codec import encode
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.ledger.store.snapshot import state_bytes, state_of

fold: Any = compiled.fold

LEFT_TO_THE_REFERENCE: Final = frozenset({e.RunConfigured, e.RankLost, e.RankRestarted, e.ProducerRestarted})


class Both:
    """`offer` gives an event to both; `probe` asks both and leaves them as they are."""

    def __init__(self, state: State = EMPTY) -> None:
        self.taken: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()  # legal events that the machine left to the reference
        self.refused: Counter[str] = Counter()
        self.go_on(state)

    def go_on(self, state: State) -> None:
        self.state = state
        self.machine = fold.machine_of(state_bytes(state))
        assert (self.machine is None) == (state.pool.run is None), "a state of a configured pool was not loaded"
        self.saved = b"" if self.machine is None else self.machine.state_bytes()

    def offer(self, event: Event, where: str = "") -> None:
        """Raises what the reference raises."""
        after, taken = self._answers(event, where)
        if isinstance(after, KvsweepError):
            raise after
        if taken:
            self.state, self.saved = after, self.machine.state_bytes()
        else:
            self.go_on(after)

    def probe(self, event: Event, where: str = "") -> None:
        if self._answers(event, where)[1]:
            self.machine = fold.machine_of(self.saved)

    def _answers(self, event: Event, where: str) -> tuple[State | KvsweepError, bool]:
        """What the reference says, and whether the machine has taken the event."""
        where, name = f"{where}: {event}", type(event).__name__
        try:
            body = encode(event)
        except LogError as error:  # it cannot be written, so nobody is ever asked about it
            return error, False
        after = _reference(self.state, event)
        taken = self.machine is not None and self.machine.apply(body)
        if self.machine is not None and not taken:
            assert self.machine.state_bytes() == self.saved, f"{where}: declined, but the machine is another one"
        if isinstance(after, KvsweepError):
            assert not taken, f"{where}: taken, but the reference says: {after}"
            self.refused[name] += 1
        elif taken:
            found = state_of(self.machine.state_bytes())
            assert found == after, f"{where}: {differences(found, after)}"
            assert parts_digest(found) == parts_digest(after), where
            self.taken[name] += 1
        else:
            self.declined[name] += 1
        return after, taken


def _reference(state: State, event: Event) -> State | KvsweepError:
    try:
        return apply(state, event)
    except KvsweepError as error:
        return error


def differences(found: Any, expected: Any, path: str = "state") -> str:
    """Where two states differ, and how; the first few places."""
    if type(found) is type(expected) and hasattr(found, "__struct_fields__"):
        pairs = [(name, getattr(found, name), getattr(expected, name)) for name in found.__struct_fields__]
    elif isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(repr(key), found.get(key), expected.get(key)) for key in {**found, **expected}]
    else:
        return f"{path}: expected {expected}, got {found}"
    return "; ".join(differences(one, other, f"{path}.{name}") for name, one, other in pairs if one != other)


def walk_both(
    seed: int, *, batches: int, spoil: float, before: Callable[[Both, Event, str], None] = lambda *_: None
) -> Both:
    """A random walk; a part of its facts is spoiled. Batches are taken as a whole; what cannot be written is not.

    before  hears of each event that is about to be offered
    """
    walk = Walk(seed, WITH_SLIDING if seed % 2 else TWO_LAYERS, spoil)
    both = Both(walk.state)
    for at in range(batches):
        batch, state, where = walk.batch(), both.state, f"seed {seed}, batch {at}"
        try:
            for event in batch:
                before(both, event, where)
                both.offer(event, where)
        except KvsweepError:
            both.go_on(state)
            continue
        walk.take(batch)
        assert both.state == walk.state, where
    return both


def expect_taken(both: Both) -> None:
    """Legal events are left to the reference only where they are of a kind that is."""
    assert set(both.declined) <= {kind.__name__ for kind in LEFT_TO_THE_REFERENCE}, both.declined


def fold_both(events: Iterable[Event]) -> Both:
    both = Both()
    for at, event in enumerate(events, start=1):
        both.offer(event, f"event {at}")
    expect_taken(both)
    return both
