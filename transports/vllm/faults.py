"""Faults of the way back, for tests: a rank's reports are lost, sent twice, or late. Seeded, so that runs repeat."""

import random
from typing import Annotated

from msgspec import Meta, Struct

from kvsweep.transports.vllm.messages import Completion

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]


class FaultSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often each happens to a completion; 0 for all of them outside tests."""

    drop: Probability = 0.0
    duplicate: Probability = 0.0
    delay: Probability = 0.0
    delay_steps: Annotated[int, Meta(ge=1)] = 3  # steps of the engine
    seed: int = 20260916

    @property
    def any(self) -> bool:
        return bool(self.drop or self.duplicate or self.delay)


class FaultyWay:
    """Carries completions as the settings say. A lost report is sent again when the rank is probed."""

    def __init__(self, settings: FaultSettings, *, rank: int) -> None:
        self.settings = settings
        self.dropped = self.duplicated = self.delayed = 0
        self._random = random.Random(f"{settings.seed}/{rank}")
        self._late: list[tuple[int, Completion]] = []
        self._turn = 0

    def carry(self, reports: list[Completion]) -> list[Completion]:
        """What arrives in this step of `reports` and of those that are late."""
        self._turn += 1
        if not self.settings.any:
            return reports
        due = [report for turn, report in self._late if turn <= self._turn]
        self._late = [(turn, report) for turn, report in self._late if turn > self._turn]
        for report in reports:
            draw = self._random.random()
            if draw < self.settings.drop:
                self.dropped += 1
            elif draw < self.settings.drop + self.settings.duplicate:
                self.duplicated += 1
                due += [report, report]
                self._late.append((self._turn + self.settings.delay_steps, report))
            elif draw < self.settings.drop + self.settings.duplicate + self.settings.delay:
                self.delayed += 1
                self._late.append((self._turn + self.settings.delay_steps, report))
            else:
                due.append(report)
        return due
