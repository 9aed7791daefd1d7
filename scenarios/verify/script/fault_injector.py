"""What a script's faults do, when the message or the moment that they name is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvsweep.ledger.events import Event, LaneName
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Done, MoveBlocks, StoreBlocks, Transfer
from kvsweep.ledger.state import State
from kvsweep.scenarios.verify.script import faults as f
from kvsweep.scenarios.verify.script.address import Message
from kvsweep.scenarios.verify.script.timeline import Gate, Timeline
from kvsweep.scenarios.verify.script.wires import Frame
from kvsweep.transports.wire import decode_from_rank, decode_to_rank, encode

if TYPE_CHECKING:
    from kvsweep.scenarios.verify.script.cluster import Cluster


def name_of(message: object) -> str:
    """Name in a scenario: MoveBlocks is `move_blocks`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(message).__name__).lower()


class FaultInjector:
    """The faults of one run. `on_frame` and `on_producer` are asked about every message, `see` about every fact."""

    def __init__(self, faults: tuple[f.Fault, ...], timeline: Timeline, cluster: Cluster) -> None:
        self._timeline, self._cluster = timeline, cluster
        self._faults = faults
        self._done: set[int] = set()  # by index
        self._on: list[tuple[int, f.Fault, Message, list[int]]] = []
        for at, fault in enumerate(faults):
            on = fault.before if isinstance(fault, f.Crash) else getattr(fault, "on", None)
            if on is not None:
                self._on.append((at, fault, on, [0]))
            for moment in (getattr(fault, "until", None), getattr(fault, "after", None)):
                if moment is not None and not isinstance(moment, int):
                    timeline.when(moment)
            if isinstance(fault, f.Crash) and fault.after is not None:
                crash = self._at(self._crash, at, fault)
                timeline.when(fault.after).then(self._at_once(at, fault) if fault.coordinator else crash)
            elif isinstance(fault, f.ReplaceTable):
                timeline.when(fault.after).then(self._at(self._replace_table, at, fault))
        self._names = {on.message for _, _, on, _ in self._on}
        self._lanes: dict[int, LaneName] = {}

    @property
    def loses(self) -> bool:
        """Whether a message may be lost by script: the links say so then."""
        return any(isinstance(fault, f.Drop | f.Crash) for _, fault, _, _ in self._on)

    def idle(self) -> Iterator[tuple[str, str]]:
        """(path, what) of faults that never came about: they address nothing that this run has."""
        for at, fault in enumerate(self._faults):
            until = getattr(fault, "until", None)
            if at not in self._done:
                yield f"$.fault[{at}]", "what it addresses never came"
            elif until is not None and not self._timeline.when(until).is_open:
                yield f"$.fault[{at}].until", f"{until.event}, occurrence {until.occurrence}, never came"

    def _at(self, action: Callable[[Any], None], at: int, fault: f.Fault) -> Callable[[], None]:
        """Outside of the fold that saw the moment."""

        def act() -> None:
            if not self._timeline.over:
                self._done.add(at)
                self._timeline.after(0, lambda: action(fault))

        return act

    def _at_once(self, at: int, fault: f.Crash) -> Callable[[], None]:
        """In the fold that saw the moment: nothing that follows from it leaves the process."""

        def act() -> None:
            if not self._timeline.over:
                self._done.add(at)
                self._crash(fault)

        return act

    # ---- messages

    def _matching(self, message: object, rank: int | None) -> list[f.Fault]:
        """Faults that this message meets, and counts for."""
        name, operation = name_of(message), getattr(message, "operation", None)
        number = operation.operation_id if isinstance(operation, Operation) else getattr(message, "operation_id", None)
        request = operation.request if isinstance(operation, Operation) else getattr(message, "request", None)
        if isinstance(message, Transfer | MoveBlocks | StoreBlocks) and number is not None:
            self._lanes[number] = (
                "upload" if isinstance(message, Transfer) else "retain" if isinstance(message, MoveBlocks) else "store"
            )
        met = []
        for at, fault, on, count in self._on:
            fits = (
                on.message == name
                and on.rank in (None, rank)
                and on.operation in (None, number)
                and (on.request is None or (isinstance(request, RequestKey) and request.request_id == on.request))
                and (on.lane is None or (number is not None and self._lanes.get(number) == on.lane))
            )
            if fits:
                count[0] += 1
                if on.occurrence in (0, count[0]) and not self._timeline.over:
                    self._done.add(at)
                    met.append(fault)
        return met

    def on_frame(self, rank: int, data: bytes, *, to_rank: bool) -> list[Frame]:
        """What becomes of a frame to or from a rank."""
        if not self._on:
            return [Frame(data)]
        message = decode_to_rank(data) if to_rank else decode_from_rank(data)
        frames = [Frame(data)]
        for fault in self._matching(message, rank):
            match fault:
                case f.Delay():
                    frames[-1].gate = self._timeline.both(fault.turns, fault.until)
                case f.Drop():
                    return []
                case f.Duplicate():
                    frames += [self._copy(data, fault.turns) for _ in range(fault.times)]
                case f.Reorder():
                    frames[-1].behind = fault.behind
                case f.Crash():
                    self._crash(fault)
                    return []
                case f.Stall() | f.Fail() | f.PartialWrite():
                    self._on_device(fault, rank, message)
                case f.StaleEpoch() | f.WrongOwner() if isinstance(message, Done):
                    frames.insert(0, Frame(encode(self._forged(fault, message))))
                case _:
                    pass
        return frames

    def _copy(self, data: bytes, turns: int) -> Frame:
        return Frame(data, self._timeline.gate_after(turns) if turns else None)

    def on_producer(self, message: object) -> tuple[bool, Gate | None, int]:
        """(whether it arrives, what it waits for, how many times more) of a message to or from the producer."""
        if not self._names.intersection(("gather", "publish_keep_map", "acknowledge", "acknowledged")):
            return True, None, 0
        gate, more = None, 0
        for fault in self._matching(message, None):
            match fault:
                case f.Delay():
                    gate = self._timeline.both(fault.turns, fault.until)
                case f.Duplicate():
                    more += fault.times
                case f.Crash():
                    self._crash(fault)
                    return False, None, 0
                case _:
                    pass
        return True, gate, more

    def _on_device(self, fault: f.Stall | f.Fail | f.PartialWrite, rank: int, message: Any) -> None:
        faults, number = self._cluster.node(rank).device.faults, message.operation.operation_id
        if isinstance(fault, f.Fail):
            faults.fail.add(number)
        elif isinstance(fault, f.PartialWrite):
            faults.fail_after[number] = fault.after
        else:
            faults.hold.add(number)
            self._timeline.both(fault.turns, fault.until).then(lambda: faults.hold.discard(number))

    def _forged(self, fault: f.StaleEpoch | f.WrongOwner, report: Done) -> Done:
        if isinstance(fault, f.StaleEpoch):
            return replace(report, process_epoch=report.process_epoch - 1)
        state: State = self._cluster.driver.state
        other = state.requests.get(fault.request)
        key = other.key if other is not None else RequestKey(fault.request, 1)
        return replace(report, operation=replace(report.operation, request=key))

    # ---- moments

    def see(self, event: Event) -> None:
        self._timeline.see(event)

    def _crash(self, fault: f.Crash) -> None:
        cluster, timeline = self._cluster, self._timeline
        if fault.coordinator:
            cluster.crash()
            timeline.after(0, cluster.restart_coordinator)
            return
        if fault.rank is None:
            timeline.after(0, lambda: cluster.restart_producer(register=fault.restart == 0))
            if fault.restart and fault.restart != "never":
                timeline.after(fault.restart + 1, cluster.register_all)
            return
        rank = fault.rank
        if not cluster.alive(rank):
            return
        cluster.kill(rank)
        if fault.noticed:
            timeline.after(0, lambda: cluster.notice(rank))
        if fault.restart != "never":
            timeline.after(fault.restart + 1, lambda: cluster.restart_rank(rank))

    def _replace_table(self, fault: f.ReplaceTable) -> None:
        self._cluster.replace_table(fault.rank, fault.request)
