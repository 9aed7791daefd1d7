"""The goals of a run on a GPU: which row has to reach which ratio. A simulation meets none and misses none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio of every row of this path and peer whose size ends like this, at least; or microseconds, at most."""

    path: str
    peer: str
    size: str = ""
    least_ratio: float | None = None
    most_us: float | None = None

    def judge(self, rows: list[dict[str, Any]], *, simulated: bool) -> dict[str, Any]:
        """{"goal", "measured", "met"}; met is None where nothing was measured."""
        found = [
            row
            for row in rows
            if row["path"] == self.path and row["peer"] == self.peer and row["size"].endswith(self.size)
        ]
        figure = "ours_us" if self.most_us is not None else "ratio"
        measured = [] if simulated else [row[figure] for row in found]
        if self.most_us is not None:
            text, met = f"at most {self.most_us} us", all(value <= self.most_us for value in measured)
        else:
            text, met = (
                f"at least {self.least_ratio} of {self.peer}",
                all(value >= (self.least_ratio or 0) for value in measured),
            )
        size = f", {self.size.strip()}" if self.size else ""
        return {"goal": f"{self.path}{size}: {text}", "measured": measured, "met": met if measured else None}


GOALS = (
    Goal("scatter", "device copy", " 8 KiB", least_ratio=0.70),
    *(Goal("scatter", "device copy", f" {size} KiB", least_ratio=0.85) for size in (16, 32, 64)),
    Goal("one launch", "a launch a layer", least_ratio=3.0),
    Goal("move", "device copy", least_ratio=0.80),
    Goal("move", "gather and scatter", least_ratio=1.7),
    Goal("unpack and scatter", "plain scatter", least_ratio=0.80),
    Goal("remap", "device copy", most_us=6.0),
    *(Goal("pull", "one large pinned copy", f" {size} KiB", least_ratio=0.80) for size in (8, 16)),
    *(Goal("pull", "batched copy engine", f" {size} KiB", least_ratio=5.0) for size in (8, 16)),
    Goal("pull", "batched copy engine", " 64 KiB", least_ratio=0.90),
)


def judge(rows: list[dict[str, Any]], *, simulated: bool) -> list[dict[str, Any]]:
    """Every goal with what was measured for it."""
    return [goal.judge(rows, simulated=simulated) for goal in GOALS]
