"""The adopted state, and the compiled core that decides ordinary words on it where it was built.

That core changes a state of its own in place. It takes a word whole or leaves it, changing nothing, to the decisions in
Python, which are the reference. Python's form of the state is made when somebody looks.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsweep.kernels.table import Kernels
from kvsweep.ledger import compiled, messages, state
from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Event, Measured
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.holding import Holders
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import Turn
from kvsweep.ledger.ownership import Holder, Holding, Ownership
from kvsweep.ledger.state import State
from kvsweep.ledger.store.codec import encode_group
from kvsweep.ledger.store.snapshot import state_bytes
from kvsweep.ledger.taken import Taken
from kvsweep.runtime.core.floor import Spoken
from kvsweep.runtime.core.steps import HandedOut, OpenSteps
from kvsweep.runtime.core.upload_plan import new_blocks
from kvsweep.runtime.settings import Settings

if TYPE_CHECKING:
    from kvsweep.ledger._fold import Core as CompiledCore
    from kvsweep.ledger._fold import Machine

UNSEEN: Final = 256
"""Events after which Python's form of the state is made though nobody looks: were the compiled core lost, so many are
folded again."""

_NAMED: Final = {
    e: "BlocksSelected UploadPlanned BlocksLeased TransferStarted RankTransferred TransferCompleted ResidencyCommitted"
    " KeepMapPublished UploadAcknowledged RetainPlanned ReadersDrained TablesApplied AllRanksApplied OwnersCommitted"
    " BlocksRetired RetainAcknowledged RankStored StoreCompleted TailDropped FenceOpened",
    messages: "Done Acknowledged Select BlockSelection Retain Reserved Reserve Release Gather Transfer MoveBlocks"
    " PublishKeepMap Acknowledge Turn",
    state: "State PoolState RequestState Lane OpenOperation ClosedOperation View TailBlock KeepMap Remembered",
}
TYPES: Final[dict[str, type]] = {
    **{name: getattr(module, name) for module, names in _NAMED.items() for name in names.split()},
    **{kind.__name__: kind for kind in (RequestKey, Operation, Rows, Measured, Holder, Holding, Holders, Ownership)},
    "HandedOut": HandedOut,
}
"""What the compiled core reads and makes, by name."""


def options(settings: Settings, kernels: Kernels) -> dict[str, Any]:
    """What the compiled core has to know of the settings, and what it asks Python for."""
    return {
        "blocks": settings.selection.method == "block",
        "layer_tables": settings.retain.layer_tables,
        "scatter": settings.transfer.scatter,
        "source_kind": settings.source.kind,
        "diff": partial(new_blocks, kernels),
    }


class Standing:
    """The state that stands: what was adopted. One turn at a time may be staged on it."""

    def __init__(self, state: State, settings: Settings, steps: OpenSteps, kernels: Kernels, *, compiled: bool) -> None:
        """compiled  False: all is decided in Python."""
        self._settings, self._steps, self._kernels, self._compiled = settings, steps, kernels, compiled
        self._state = state  # as Python has seen it last
        self._unseen: list[Event] = []  # adopted since then by the compiled core
        self._machine: Machine | None = None
        self._core: CompiledCore | None = None  # decides on the machine's state
        self._spoken: Spoken | None = Spoken(state)  # None: the compiled core knows
        self._taken: tuple[Layout, Taken] | None = None  # what anybody held when somebody last asked; None: not known
        self.staged = False  # whether a turn waits to be adopted or discarded
        self._decided: State | None = None  # what it comes to; None: the compiled core knows

    def fork(self, steps: OpenSteps) -> "Standing":
        """The same now, apart from here on, and decided in Python alone: a search forks more often than it decides."""
        twin = Standing(state.EMPTY, self._settings, steps, self._kernels, compiled=False)
        twin._state, twin._spoken = self.state, self._spoken.fork() if self._spoken else Spoken(self.state)
        return twin

    @property
    def state(self) -> State:
        """What was adopted; a staged turn is no part of it."""
        if self._unseen:
            if self._core is not None and not self._ahead:
                self._state = self._core.state(self._state)
            else:
                self._state = apply_all(self._state, self._unseen)
            self._unseen = []
        return self._state

    @property
    def _ahead(self) -> bool:
        """Whether the compiled core's state has a turn that is only staged."""
        return self.staged and self._decided is None

    def floor(self, number: int) -> int:
        """Lowest id that may still be spoken of once `number` begins: below it a rank forgets and refuses."""
        if self._core is not None:
            return self._core.floor(number)
        if self._spoken is None:
            self._spoken = Spoken(self.state)
        return self._spoken.floor(number)

    # ---- words

    def handle(self, message: messages.Command | messages.Report) -> Turn | None:
        """The turn, staged, or None where Python has to decide."""
        core = self._core
        if core is None:
            core = self._ready() if type(message) in _ORDINARY else None
            if core is None:
                return None
        turn: Turn | None = None
        try:
            turn = core.handle(message)
        finally:
            if turn is None and core.torn():
                self._leave()
        self.staged = turn is not None and turn.outcome != "reserve"
        return turn

    def end_step(self, requests: tuple[RequestKey, ...]) -> Turn | None:
        """The turn of these requests' steps that follow by themselves, staged, or None where Python has to decide."""
        core = self._core or self._ready()
        if core is None:
            return None
        turn: Turn | None = None
        try:
            turn = core.end_step(requests)
        finally:
            if turn is None and core.torn():
                self._leave()
        self.staged = turn is not None
        return turn

    def handed_out(self, request: RequestKey) -> HandedOut | None:
        """What a step reads of the request; None where it may not begin, or only Python knows."""
        return self._core.handed_out(request) if self._core is not None and not self._ahead else None

    def _ready(self) -> "CompiledCore | None":
        if self._core is None and self._compiled and compiled.fold is not None and self._state.pool.run is not None:
            try:
                machine = compiled.fold.machine_of(state_bytes(self.state))
            except UnicodeEncodeError:  # a text that no log could keep, in a core without one
                machine = None
            if machine is None:  # a state that it does not take does not become one that it takes
                self._compiled = False
                return None
            self._machine = machine
            self._core = compiled.fold.Core(machine, TYPES, self._steps, options(self._settings, self._kernels))
            self._spoken = None
        return self._core

    def _leave(self) -> None:
        """The compiled core's state is not the one that stands: it is made again when it is needed."""
        self._core = self._machine = self._taken = None

    # ---- turns

    def to_decide(self) -> State:
        """The state, for a decision in Python: with the index of what is held, which the compiled core has at hand."""
        known = self.state
        if self._core is not None and "_taken" not in known.ownership.__dict__:
            if self._taken is None or self._core.moved():
                device, cpu = self._core.taken()
                marks = [np.frombuffer(held, dtype=np.bool_) for held in (*device, cpu)]
                self._taken = known.pool.layout, Taken(tuple(marks[:-1]), marks[-1])
            known.ownership.__dict__["_taken"] = self._taken
        return known

    def stage(self, state: State) -> None:
        """What a turn that was decided in Python comes to."""
        self.staged, self._decided = True, state

    def adopt(self, events: tuple[Event, ...]) -> None:
        """The staged turn's events are in the log: its state stands."""
        self.staged = False
        if self._decided is not None:
            self._state, self._decided = self._decided, None
            self._follow(events)
        elif self._core is not None and events:
            self._unseen += events  # first: whatever stops the rest, they are in the log
            self._core.adopt()
            if len(self._unseen) >= UNSEEN:
                self._state = self.state

    def discard(self) -> None:
        """The log said no: nothing happened."""
        if self._ahead:
            self._leave()
        self.staged, self._decided = False, None

    def _follow(self, events: tuple[Event, ...]) -> None:
        """Events that were decided in Python: whoever keeps something about the state hears of them."""
        if self._core is not None and events:
            if self._fed(events):
                self._core.fed({event.request for event in events})
                self._taken = self._state.ownership.__dict__.get("_taken")
            else:
                self._leave()
        elif self._spoken is not None:
            self._spoken.adopted(self._state, events)
        for event in events:
            if isinstance(event, e.TailDropped):
                self._steps.fence(event.request, event.fence)
            elif isinstance(event, e.FenceOpened):
                self._steps.forget_fence(event.request, event.fence)

    def _fed(self, events: tuple[Event, ...]) -> bool:
        """Whether the machine's state is that after these events."""
        try:
            bodies = encode_group(events)
        except LogError:  # nobody has recorded them
            return False
        return self._machine is not None and self._machine.feed(bodies.data, 0, len(events)) == len(events)


_ORDINARY: Final = frozenset(
    {messages.Done, messages.Acknowledged, messages.Select, messages.Retain, messages.Reserved}
)
