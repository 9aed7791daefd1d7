"""What a run inside vLLM came to: counted from the events as they are recorded, and written as JSON."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import KvsweepError, Refused
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.state import State


class Counts:
    """A watcher of the driver. Every figure is counted by itself; none is derived from another."""

    def __init__(self) -> None:
        self.commits = self.stores = self.uploaded_areas = self.released_blocks = 0
        self.preemptions = self.aborted = self.keep_maps = 0
        self.resident_blocks_max = self.owned_blocks_max = 0  # of one request, after any commit
        self.kept_blocks_max = 0  # of one request, after a keep
        self.refused: Counter[str] = Counter()
        self.acks: Counter[str] = Counter(accepted=0, repeated=0, ignored=0, refused=0)
        self.retained: Counter[str] = Counter()
        self.ranks: dict[int, dict[str, int]] = {}
        self.steps = 0
        self.contradicting = 0

    def __call__(self, event: Event) -> None:
        match event:
            case e.ResidencyCommitted() | e.OwnersCommitted():
                self.commits += 1
            case e.StoreCompleted():
                self.stores += 1
            case e.UploadPlanned():
                self.uploaded_areas += event.logical.size
            case e.RetainPlanned():
                self.retained[event.mode] += 1
            case e.KeepMapPublished():
                self.keep_maps += 1
            case e.BlocksRetired() | e.FenceOpened():
                self.released_blocks += sum(int32_view(ids).size for ids in event.freed)
            case e.RequestPreempted():
                self.preemptions += 1
            case e.UploadAborted() | e.RetainAborted() | e.StoreAborted():
                self.aborted += 1
            case e.PlanRefused():
                self.refused[f"{event.lane}: {event.reason}"] += 1
            case e.CommandRefused():
                self.refused[f"{event.command}: {event.reason}"] += 1
            case _:
                pass

    def measure(self, state: State, key: RequestKey, *, kept: bool) -> None:
        """Blocks that a layer of the request reads from its view at most, and those that all of it stands in.

        kept  whether this is what a keep has left
        """
        request = state.request(key)
        if request is not None and request.view is not None:
            most = int(request.view.physical.counts.max())
            self.resident_blocks_max = max(self.resident_blocks_max, most)
            self.kept_blocks_max = max(self.kept_blocks_max, most * kept)
            (owned,) = state.ownership.owned(key, state.pool.layout)
            self.owned_blocks_max = max(self.owned_blocks_max, owned.size)

    def note(self, error: KvsweepError) -> None:
        """Something was not done because of this; what was refused as a command is counted from the ledger already."""
        if not isinstance(error, Refused):
            self.refused[type(error).__name__] += 1

    def of_ranks(self, name: str) -> int:
        """Sum of one of the ranks' running counts."""
        return sum(counts.get(name, 0) for counts in self.ranks.values())

    def summary(self) -> dict[str, Any]:
        return {
            "commits": self.commits,
            "stores": self.stores,
            "uploads_areas": self.uploaded_areas,
            "retained": dict(self.retained),
            "keep_maps": self.keep_maps,
            "released_blocks": self.released_blocks,
            "preemptions": self.preemptions,
            "aborted": self.aborted,
            "refused": dict(self.refused),
            "checksums": {"checked": self.of_ranks("checked"), "wrong": self.of_ranks("wrong")},
            "poisoned_blocks": self.of_ranks("poisoned"),
            "acks": {**self.acks, "contradicting": self.contradicting},
            "faults": {name: self.of_ranks(name) for name in ("dropped", "duplicated", "delayed")},
            "resident_blocks_max": self.resident_blocks_max,
            "owned_blocks_max": self.owned_blocks_max,
            "kept_blocks_max": self.kept_blocks_max,
            "steps": self.steps,
        }


def write(path: str, summary: dict[str, Any]) -> None:
    """Replace the file as a whole: whoever reads it never finds half of it."""
    place = Path(path)
    whole = place.with_name(place.name + ".part")
    whole.write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    whole.replace(place)
