"""The compiled core beside the one in Python: asked the same in every state, and what it answers has to be the same.

It is asked twice: on a machine that was loaded with the very state, and on one that came there by events, whose counts
were kept and not made. Neither may be left halfway, or changed by a word that it leaves to Python. In the end every
event that the search has come to is tried in every state, where most of them are illegal.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.kernels.table import choose_kernels
from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, UsageError
from kvsweep.ledger.events import Event
from kvsweep.ledger.fold import apply, apply_all
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.messages import Turn
from kvsweep.ledger.state import State
from kvsweep.ledger.store.codec import Bodies, encode
from kvsweep.ledger.store.digest import parts_digest
from kvsweep.ledger.store.snapshot import state_bytes, state_of
from kvsweep.runtime.core.compiled_core import TYPES, options
from kvsweep.runtime.core.core import Core, Message
from kvsweep.runtime.core.floor import Spoken
from kvsweep.runtime.core.steps import HandedOut, OpenSteps
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.verify.explore.digest import digest_of

if TYPE_CHECKING:
    from kvsweep.ledger._fold import Core as CompiledCore
    from kvsweep.ledger._fold import Machine

Said: TypeAlias = Sequence[tuple[Message | int, Turn]]
"""What the core was asked, messages or the number of a step that ends, and what it answered; all but the last are
answered by a question for blocks."""

LEFT: Final = frozenset({e.RunConfigured, e.RankLost, e.RankRestarted, e.ProducerRestarted})
"""Events that the machine leaves to the fold in Python. Every other legal one it takes."""

NOTES: Final = frozenset({e.AckIgnored, e.CommandRefused, e.PlanRefused})
"""Events that change nothing but counts: one of a request is tried, not each."""

_ENCODER: Final = msgspec.msgpack.Encoder()


class Asked(Struct):
    """How much of a search the compiled core has decided itself."""

    words: int = 0  # messages and ends of steps
    words_taken: int = 0
    events: int = 0
    events_taken: int = 0
    tried: int = 0  # events of anywhere in a state of anywhere
    tried_taken: int = 0


class Fed(Struct, frozen=True):
    """The events of a turn that Python decided."""

    bodies: Bodies
    requests: frozenset[RequestKey]


class Grown(Struct, frozen=True):
    """How a machine comes to a state by events: the state that it was loaded with, and what it was fed with since."""

    base: bytes
    fed: tuple[Fed, ...] = ()


class Beside:
    """Keeps counts, and one of each event that came, whatever its number."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError where there is no compiled core."""
        if compiled.fold is None:
            raise UsageError(f"the compiled core cannot be asked: {compiled.why_not_compiled()}")
        self._fold = compiled.fold
        self._options = options(settings, choose_kernels("numpy"))
        self.asked = Asked()
        self._came: dict[object, Event] = {}

    def begins(self, state: State) -> Grown:
        return Grown(state_bytes(state))

    def took(self, before: Core, grown: Grown, said: Said, after: Core) -> tuple[Grown, list[str]]:
        """How a machine comes to the state afterwards, and what differs."""
        found: list[str] = []
        loaded: list[bool] = []
        fed: list[bool] = []
        for how, start, taken in (("loaded", Grown(state_bytes(before.state)), loaded), ("fed", grown, fed)):
            found += (f"both cores are one: {how}: {what}" for what in self._words(before, start, said, after, taken))
        if loaded != fed and not found:
            found.append(f"both cores are one: one takes what the other leaves: {[message for message, _ in said]}")
        self.asked.words += len(loaded)
        self.asked.words_taken += sum(loaded)
        grown, events = self._events(before.state, grown, said[-1][1].events, after.state)
        return grown, found + [f"both folds are one: {what}" for what in events]

    def begun(self, before: Core, grown: Grown, handed: Mapping[RequestKey, HandedOut]) -> list[str]:
        """What differs when a step begins."""
        _, core = self._core(grown, before.steps)
        answers = {key: core.handed_out(key) for key in handed}
        return [
            f"both cores are one: a step is handed {answers[key]}, in Python {one}"
            for key, one in handed.items()
            if answers[key] not in (None, one)
        ]

    def _machine(self, grown: Grown) -> "Machine":
        machine: Machine | None = self._fold.machine_of(grown.base)
        if machine is None:
            raise UsageError("the compiled fold does not take the state of a configured pool")
        for turn in grown.fed:
            _feed(machine, turn)
        return machine

    def _core(self, grown: Grown, steps: OpenSteps) -> "tuple[Machine, CompiledCore]":
        """A core that was there from the first state on."""
        machine = self._machine(Grown(grown.base))
        core: CompiledCore = self._fold.Core(machine, TYPES, steps, self._options)
        for turn in grown.fed:
            _feed(machine, turn)
            core.fed(turn.requests)
        return machine, core

    # ---- words

    def _words(self, before: Core, start: Grown, said: Said, after: Core, taken: list[bool]) -> Iterator[str]:
        """What differs; `taken` is filled with whether each word was taken."""
        steps, answer = before.steps.fork(), None
        machine, core = self._core(start, steps)
        yield from _held_otherwise(core, before.state)
        saved = machine.state_bytes()
        for message, turn in said:
            answer = core.end_step(steps.end(message)) if isinstance(message, int) else core.handle(message)
            taken.append(answer is not None)
            if core.torn():
                yield f"given up halfway: {message}"
                return
            if answer is not None and (answer != turn or digest_of(answer) != digest_of(turn)):
                yield f"{message}:\n  {answer}\nin Python\n  {turn}"
                return
            if (answer is None or turn.outcome == "reserve") and machine.state_bytes() != saved:
                yield f"a word that is not taken changes the state: {message}"
                return
        if answer is not None:
            if answer.events:
                core.adopt()
            yield from self._standing(core, before, after)
            for what in _differences(state_of(machine.state_bytes()), after.state):
                yield f"saved: {what}"
            if steps.described() != after.steps.described():
                yield f"open steps: {steps.described()}, in Python {after.steps.described()}"

    def _standing(self, core: "CompiledCore", before: Core, after: Core) -> Iterator[str]:
        """What the compiled core says of the state after a word that it took."""
        state = after.state
        yield from _differences(core.state(before.state), state)
        number = state.pool.next_operation_id
        if core.floor(number) != Spoken(state).floor(number):
            yield f"the floor is {core.floor(number)}, in Python {Spoken(state).floor(number)}"
        yield from _held_otherwise(core, state)

    # ---- events

    def _events(self, before: State, grown: Grown, events: Sequence[Event], after: State) -> tuple[Grown, list[str]]:
        machine, found, start = self._machine(grown), [], 0
        bodies: list[bytes] = []
        for at, event in enumerate(events):
            bodies.append(encode(event))
            self.asked.events += 1
            named = (type(event), event.request) if type(event) in NOTES else replace(event, seq=0)
            self._came.setdefault(named, event)
            if machine.apply(bodies[-1]):
                self.asked.events_taken += 1
                continue
            if type(event) not in LEFT:
                found.append(f"a legal event is not taken: {event}")
            before = apply_all(before, events[start:at])
            found += (f"not taken: {what}" for what in _differences(state_of(machine.state_bytes()), before))
            before, start = apply_all(before, (event,)), at + 1
            grown, bodies = Grown(state_bytes(before)), []
            machine = self._machine(grown)
        if bodies:
            requests = frozenset(event.request for event in events)
            grown = Grown(grown.base, (*grown.fed, Fed(Bodies.of(bodies), requests)))
        return grown, found + list(_differences(state_of(machine.state_bytes()), after))

    def tries(self, before: Core) -> Iterator[str]:
        """What differs when the events that came anywhere come in this state."""
        state, base = before.state, Grown(state_bytes(before.state))
        refused: list[bytes] = []
        legal: list[tuple[Event, bytes, State]] = []
        machine = self._machine(base)
        for known in self._came.values():
            stream = state.pool if known.request == POOL else state.request(known.request)
            event = replace(known, seq=stream.seq if stream is not None else 0)
            body = _ENCODER.encode(event)
            self.asked.tried += 1
            if not machine.apply(body):
                refused.append(body)
                continue
            self.asked.tried_taken += 1
            try:
                after = apply(state, event)
            except KvsweepError as error:
                yield f"both folds are one: an illegal event is taken: {event}: {error}"
                return
            legal.append((event, body, after))
            found = _differences(state_of(machine.state_bytes()), after)
            yield from (f"both folds are one: {event}: {what}" for what in found)
            machine = self._machine(base)
        yield from self._refused(before, refused, legal)

    def _refused(self, before: Core, refused: list[bytes], legal: list[tuple[Event, bytes, State]]) -> Iterator[str]:
        """What differs on a machine to which all events came that it does not take: they leave no trace."""
        base, trace = Grown(state_bytes(before.state)), "both folds are one: events that are not taken leave a trace: "
        machine, core = self._core(base, before.steps)
        for body in refused:
            machine.apply(body)
        yield from (trace + what for what in _differences(state_of(machine.state_bytes()), before.state))
        yield from (trace + what for what in _held_otherwise(core, before.state))
        for event, legal_body, after in legal:
            machine = self._machine(base)
            for body in (*refused, legal_body):
                machine.apply(body)
            found = _differences(state_of(machine.state_bytes()), after)
            yield from (f"{trace}then {event}: {what}" for what in found)


def _held_otherwise(core: "CompiledCore", state: State) -> Iterator[str]:
    (device, cpu), known = core.taken(), state.ownership.taken(state.pool.layout)
    for held, expected in zip((*device, cpu), (*known.device, known.cpu), strict=True):
        blocks, in_python = np.flatnonzero(np.frombuffer(held, np.bool_)), np.flatnonzero(expected)
        if blocks.tolist() != in_python.tolist():
            yield f"blocks {blocks.tolist()} are held, in Python {in_python.tolist()}"


def _feed(machine: "Machine", turn: Fed) -> None:
    machine.feed(turn.bodies.data, 0, len(turn.bodies.sizes))


def _differences(ours: State, theirs: State) -> Iterator[str]:
    """The first one."""
    if ours == theirs and parts_digest(ours) == parts_digest(theirs):
        return
    for name in ("pool", "ownership"):
        if getattr(ours, name) != getattr(theirs, name):
            yield f"{name}: {getattr(ours, name)}\nin Python\n  {getattr(theirs, name)}"
            return
    for name, request in theirs.requests.items():
        mine = ours.requests.get(name)
        for field in request.__struct_fields__:
            if getattr(mine, field, None) != getattr(request, field):
                yield f"{name}.{field}: {getattr(mine, field, None)}\nin Python\n  {getattr(request, field)}"
                return
    yield "the requests"
