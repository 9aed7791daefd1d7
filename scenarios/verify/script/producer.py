"""What stands between the coordinator and the producer: it delays and repeats what a script says."""

from __future__ import annotations

from collections.abc import Iterable

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Acknowledged, Effect, Gather, ProducerWork
from kvsweep.scenarios.verify.script.fault_injector import FaultInjector
from kvsweep.scenarios.verify.script.timeline import Gate, Timeline
from kvsweep.transports.producer import HostProducer


class ScriptProducer:
    """A producer that hears, answers and repeats when the script lets it."""

    def __init__(self, producer: HostProducer, injector: FaultInjector, timeline: Timeline) -> None:
        self._producer, self._injector, self._timeline = producer, injector, timeline
        self._to: list[tuple[Effect, Gate]] = []
        self._from: list[tuple[Acknowledged, Gate]] = []

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, ProducerWork):
                continue
            arrives, gate, _ = self._injector.on_producer(effect)
            if not arrives:
                continue
            if gate is None or isinstance(effect, Gather):
                self._producer.perform([effect])
            else:
                self._to.append((effect, gate))
                gate.then(self._timeline.clock.ring)

    def poll(self) -> list[Acknowledged]:
        ready = [effect for effect, gate in self._to if gate.is_open or self._timeline.over]
        self._to = [(effect, gate) for effect, gate in self._to if not (gate.is_open or self._timeline.over)]
        self._producer.perform(ready)
        reports = []
        for report in self._producer.poll():
            arrives, gate, more = self._injector.on_producer(report)
            if arrives and gate is None:
                reports.append(report)
            elif arrives and gate is not None:
                self._from.append((report, gate))
                gate.then(self._timeline.clock.ring)
            reports += [report] * more
        reports += [report for report, gate in self._from if gate.is_open or self._timeline.over]
        self._from = [(report, gate) for report, gate in self._from if not (gate.is_open or self._timeline.over)]
        return reports

    def forget(self, request: RequestKey) -> None:
        self._producer.forget(request)
