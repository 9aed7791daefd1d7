"""Names of what is checked in every run, and of the figures that a script may expect."""

from __future__ import annotations

from typing import Final

from kvsweep.ledger import laws
from kvsweep.runtime.metrics import Metrics
from kvsweep.scenarios.verify.checkers import acks, conservation, content, ownership

BYTES: Final = content.LAW
DRAINS: Final = "everything drains"
REPLAYS: Final = "a replay gives the same state"
MOVES: Final = "nothing stands still"
AS_WRITTEN: Final = "steps end as the script says"
NO_ERROR: Final = "no error but ours"
LAWS: Final[dict[str, str]] = {
    BYTES: "whoever reads a generation, a tail or a valid CPU block sees the bytes that were written there",
    ownership.LAW: "no block, row or CPU block is handed out while held, freed twice or freed while held",
    acks.LAW: "every word of a rank or the producer gets the verdict that the contract gives it",
    conservation.LAW: "free and held blocks make up each pool after every fact",
    DRAINS: "after the faults stop, leases, fences and quarantine end, and every block is free again",
    REPLAYS: "folding the ledger anew gives the state and digest of the run",
    MOVES: "no wait of the script outlasts every deadline",
    AS_WRITTEN: "no step is refused or aborted that the script does not say so of, and each that it says so of is",
    NO_ERROR: "nothing raises what is not an error of the project",
    **{law.name: f"recounted from the state (clause {law.clause})" for law in laws.LAWS},
}
LAW_NAMES: Final = tuple(LAWS)
VERDICTS: Final = ("duplicate", "stale", "future", "conflict")


def figures(metrics: Metrics) -> dict[str, int]:
    """What a run cost, counted; no seconds, which a clock measures."""
    counted = {
        name: value
        for name, value in vars(metrics).items()
        if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_")
    }
    return counted | {f"remap_{mode}": count for mode, count in metrics.remap.items()}


FIGURES: Final = tuple(figures(Metrics()))
