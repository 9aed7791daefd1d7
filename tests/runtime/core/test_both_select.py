"""Random selections and retentions, right ones and wrong ones, asked of both cores: they answer the same to each."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ledger.chance import Chance
from tests.runtime.core import both_cores
from tests.runtime.rig import PRODUCER, RANKS, CoreRig, make_layout, rows, selection

from kvsweep.ledger import compiled
from kvsweep.ledger.ids import Operation, RequestKey, Rows, int32_bytes
from kvsweep.ledger.messages import (
    Abort,
    Acknowledged,
    BlockSelection,
    OpenTail,
    Preempt,
    Resume,
    Retain,
    SealTail,
    Select,
    Turn,
)
from kvsweep.runtime.core.core import Message
from kvsweep.runtime.core.upload_plan import keep_slots

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")

WORDS = 100
"""Actions of one walk."""

SETTINGS: dict[str, dict[str, Any]] = {
    "layer tables": {},
    "scattered": {"transfer": {"scatter": True}},
    "copied": {"source": {"kind": "copy", "allow_copy": True}},
    "shared tables": {"retain": {"layer_tables": False}},
}


class Walk:
    """Two requests of one pool that is often short of room, in whatever order chance has it."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        self.chance = Chance(seed)
        layout = make_layout(self.chance.one((1, 2, 3)), sliding=self.chance.one((0, 1)))
        self.rig = CoreRig(layout, device_blocks=self.chance.one((12, 40)), cpu=(64, 80), **settings)
        self.keys = [self.rig.open(name, blocks=4) for name in ("a", "b")]
        self.whole = dict.fromkeys(self.keys, 4)
        self.operations: list[Operation] = []
        self.steps: list[int] = []
        self.said = [f"k{number}" for number in range(6)]  # some are said again

    def go(self) -> Counter[str]:
        """Raises AssertionError where the cores differ. Gives how often what was seen."""
        actions = (self.select, self.select, self.retain, self.retain, self.end, self.report, self.write, self.step)
        for _ in range(WORDS):
            key = self.chance.one(self.keys)
            stopped = self.rig.request(key).life != "RUNNING"
            if self.chance.chance(0.5 if stopped else 0.02):
                self.interrupt(key)
            else:
                self.chance.one(actions)(key)
        seen = Counter(type(event).__name__ for event in self.rig.events)
        seen["shared remap"] = sum(getattr(event, "mode", "") == "shared" for event in self.rig.events)
        seen["adopted"] = sum(bool(getattr(event, "adopted", no_ids()).size) for event in self.rig.events)
        return seen

    def send(self, message: Message) -> Turn:
        turn = self.rig.send(message)
        if turn.operation is not None and turn.outcome == "accepted":
            self.operations.append(turn.operation)
        return turn

    # ---- selections and retentions

    def select(self, key: RequestKey) -> None:
        self.mostly_idle(key)
        whole, layers = self.whole[key], self.rig.layout.active_layers
        want = {layer: self.chance.some(range(whole)) for layer in layers}
        if self.chance.chance(0.3):
            want = self.in_each(want[layers[0]])
        tail = {layer: self.chance.some(set(range(whole)) - set(want[layer]))[::-1] for layer in layers}
        revision = self.rig.request(key).selection_revision + 1
        asked = selection(self.rig.layout, key, revision, want, tail=tail, whole=whole)
        if self.chance.chance(0.3):
            asked = self.spoiled_selection(asked)
        self.send(Select(selection=asked, idempotency_key=self.name(), adopt=self.chance.chance(0.7)))

    def spoiled_selection(self, asked: BlockSelection) -> BlockSelection:
        if self.chance.chance(0.2):
            return self.shortened(asked)
        lists = ("logical_blocks_by_layer", "ranked_tail_by_layer")
        field = self.chance.one((*lists, *lists, *asked.__struct_fields__[1:]))
        value = getattr(asked, field)
        if isinstance(value, int):
            value += self.chance.one((-99, -1, 1, 2**33))
        elif isinstance(value, Rows):
            value = self.spoiled_rows(value)
        elif value is None:
            value = asked.logical_blocks_by_layer
        else:
            value = self.chance.one((b"", int32_bytes([7]) + value, value[4:] + int32_bytes([1])))
        return replace(asked, **{field: value})

    def shortened(self, asked: BlockSelection) -> BlockSelection:
        """Of fewer whole blocks, maybe fewer than are resident."""
        whole = self.chance.one(range(asked.whole_blocks + 1))

        def below(told: Rows[Any]) -> Rows[Any]:
            return rows({layer: [block for block in ids if block < whole] for layer, ids in told.as_lists().items()})

        return replace(
            asked,
            whole_blocks=whole,
            effective_budget_blocks=whole,
            logical_blocks_by_layer=below(asked.logical_blocks_by_layer),
            ranked_tail_by_layer=below(asked.ranked_tail_by_layer),
        )

    def retain(self, key: RequestKey) -> None:
        self.mostly_idle(key)
        request, layers = self.rig.request(key), self.rig.layout.active_layers
        view = request.view
        have = view.logical.as_lists() if view is not None else self.in_each([])
        kept = {layer: self.chance.some(have[layer]) for layer in layers}
        if self.chance.chance(0.5):
            kept = self.in_each([block for block in kept[layers[0]] if all(block in h for h in have.values())])
        adopt = self.in_each([])
        if self.chance.chance(0.6):
            clean = [block.logical for block in request.tail if block.phase == "clean"]
            adopt = {layer: self.chance.some(set(clean) - set(kept[layer]), most=2) for layer in layers}
        asked = Retain(
            request=key,
            keep=keep_slots(request, rows(kept)),
            adopt=rows(adopt),
            map_revision=request.map_revision,
            selection_revision=request.selection_revision,
            idempotency_key=self.name(),
        )
        self.send(self.spoiled_retain(asked) if self.chance.chance(0.3) else asked)

    def spoiled_retain(self, asked: Retain) -> Retain:
        field = self.chance.one(("keep", "keep", "adopt", "adopt", "map_revision", "pack"))
        value = getattr(asked, field)
        if isinstance(value, bool):
            value = not value
        elif isinstance(value, int):
            value += self.chance.one((-9, -1, 1))
        else:
            value = self.spoiled_rows(value)
        return replace(asked, **{field: value})

    def spoiled_rows(self, told: Rows[Any]) -> Rows[Any]:
        """Another id, one more, one less, another order; or another layer, one more, one less."""
        lists = told.as_lists()
        layer = self.chance.one(lists or [0])
        row = lists.setdefault(layer, [])
        match self.chance.one(("add", "drop", "change", "turn", "layer more", "layer less", "no layer")):
            case "add":
                row.append(self.chance.one((-1, 0, 1, 3, 8, 2**24, 2**31 - 1, *row)))
            case "drop" | "change" if row:
                at = self.chance.one(range(len(row)))
                row[at : at + 1] = self.chance.one(([], [row[0]], [row[at] + 1], [-1]))
            case "turn":
                row.reverse()
            case "layer more":
                lists[max(lists) + 1] = list(row)
            case "layer less":
                del lists[layer]
            case _:
                lists = {}
        return rows(lists)

    def in_each(self, ids: list[int]) -> dict[int, list[int]]:
        """These ids in every active layer."""
        return {layer: list(ids) for layer in self.rig.layout.active_layers}

    def name(self) -> str:
        """An idempotency key: mostly a new one, or none."""
        if self.chance.chance(0.8):
            self.said.append(f"k{len(self.said)}")
            return self.said[-1]
        return self.chance.one(("", *self.said[-4:]))  # type: ignore[no-any-return]

    # ---- what happens beside them

    def end(self, key: RequestKey) -> None:
        """The newest operation is done on every rank, and the producer has heard."""
        if self.operations:
            operation = self.operations.pop()
            for rank, _ in RANKS:
                self.rig.done(operation, rank)
            self.rig.send(Acknowledged(operation=operation, process_epoch=PRODUCER))

    def mostly_idle(self, key: RequestKey) -> None:
        while self.operations and self.chance.chance(0.9):
            self.end(key)

    def report(self, key: RequestKey) -> None:
        """One word about any operation, in no order."""
        if self.operations and self.chance.chance(0.5):
            self.rig.done(self.chance.one(self.operations), self.chance.one((0, 1)))
        elif self.operations:
            epoch = self.chance.one((PRODUCER, PRODUCER, PRODUCER - 1))
            self.rig.send(Acknowledged(operation=self.chance.one(self.operations), process_epoch=epoch))

    def write(self, key: RequestKey) -> None:
        """One more block is written by the device and stored; it may be clean by then."""
        until = self.whole[key] + 1
        if until <= 14 and self.send(OpenTail(request=key, until=until)).outcome == "accepted":
            self.whole[key] = until
            turn = self.send(SealTail(request=key, confirmed_tokens=until * self.rig.layout.block_size))
            if turn.operation is not None and self.chance.chance(0.8):
                for rank, _ in RANKS:
                    self.rig.done(turn.operation, rank)

    def step(self, key: RequestKey) -> None:
        if self.steps and self.chance.chance(0.6):
            self.rig.end_step(self.steps.pop(0))
        elif self.rig.request(key).life == "RUNNING":
            self.steps.append(self.rig.begin_step(key))

    def interrupt(self, key: RequestKey) -> None:
        if self.operations and self.chance.chance(0.5):
            self.rig.send(Abort(operation=self.chance.one(self.operations), reason="chance"))
        elif self.rig.request(key).life == "RUNNING":
            self.rig.send(Preempt(request=key))
        else:
            self.rig.send(Resume(request=key))


def no_ids() -> Rows[Any]:
    return rows({})


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    both_cores.never_given_up(monkeypatch)


def walks(seeds: range, settings: dict[str, Any]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += Walk(seed, settings).go()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {settings}: {error}") from error
    return seen


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_both_cores_answer_the_same_to_random_selections_and_retentions(settings: dict[str, Any]) -> None:
    before = both_cores.compiled.copy()
    seen = walks(range(10), settings)
    taken = both_cores.compiled - before
    assert min(seen[name] for name in ("UploadPlanned", "RetainPlanned", "CommandRefused", "PlanRefused")) > 10
    if "retain" not in settings:
        assert min(seen["KeepMapPublished"], seen["adopted"], seen["shared remap"], taken["Select"]) > 10
        assert taken["Retain"] > 0.9 * seen["RetainPlanned"]


@pytest.mark.full
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_many_random_selections_and_retentions(settings: dict[str, Any]) -> None:
    walks(range(100, 400), settings)
