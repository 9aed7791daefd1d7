"""The books of the ownership oracle: every life and every pair, and the breaks found while they are kept."""

from collections.abc import Iterable
from typing import Any, Final

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, RequestKey
from kvsweep.runtime.core.steps import HandedOut
from kvsweep.scenarios.verify.checkers.breaks import Breaks
from kvsweep.scenarios.verify.checkers.lives import Attempt, Ids, Life, flat
from kvsweep.scenarios.verify.checkers.relation import Area, CpuBlock, DeviceBlock, Holder, Relation, Resource, TableRow

LAW: Final = "ownership"


class Account(Breaks):
    """Who lives, who holds what, which step was handed what. Closed lives are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.run: e.RunConfigured | None = None
        self.lives: dict[RequestKey, Life] = {}
        self.relation = Relation({})
        self.reserved_by: dict[DeviceBlock, RequestKey] = {}
        self.shared: set[DeviceBlock] = set()
        self.prefixes: dict[int, tuple[int, dict[int, int], int]] = {}  # number -> logical, block by group, CPU block
        self.steps: dict[int, dict[RequestKey, HandedOut]] = {}
        self.layers_of_group: dict[int, list[int]] = {}

    def whole_blocks(self, blocks: Iterable[tuple[int, int]]) -> list[Resource]:
        """Every area of these (group, block) pairs."""
        return [Area(layer, block) for group, block in blocks for layer in self.layers_of_group.get(group, [])]

    def take_new(self, key: RequestKey, blocks: Iterable[tuple[int, int]]) -> None:
        """Blocks that the pools gave: nobody may hold or own them."""
        sizes = self.run.device_blocks if self.run else ()
        for group, number in blocks:
            block = DeviceBlock(group, number)
            if not (0 <= group < len(sizes) and 0 <= number < sizes[group]):
                self.add(LAW, f"{block} is handed out and not in the pool")
            for holder in sorted(self.relation.block_holders(block)):
                self.add(LAW, f"{block} is handed out to {key.request_id} while held by {holder}")
            if block in self.reserved_by:
                self.add(LAW, f"{block} is handed out twice: it is reserved by {self.reserved_by[block].request_id}")
            self.reserved_by[block] = key

    def take_row(self, key: RequestKey, row: int) -> None:
        for holder in sorted(self.relation.holders(TableRow(key, row))):
            self.add(LAW, f"{TableRow(key, row)} is handed out while held by {holder}")

    def take_cpu(self, key: RequestKey, blocks: Iterable[int], first: int, stop: int, own: Iterable[int] = ()) -> None:
        mine = set(own)
        for number in blocks:
            if not first <= number < stop:
                self.add(LAW, f"CPU block {number} is handed out and not in [{first}, {stop})")
            for holder in sorted(self.relation.holders(CpuBlock(number))) if number not in mine else ():
                self.add(LAW, f"CPU block {number} is handed out to {key.request_id} while held by {holder}")

    def let_go(self, holder: Holder) -> set[DeviceBlock]:
        if not self.relation.held_by(holder) and holder.kind in ("view", "tail", "prefix"):
            self.add(LAW, f"{holder} is let go of twice, or held nothing")
        freed = self.relation.drop(holder)
        for block in freed:
            self.reserved_by.pop(block, None)
            self.shared.discard(block)
        return freed

    def said_free(self, what: str, said: tuple[bytes, ...], freed: set[DeviceBlock]) -> None:
        """The blocks that an event calls free are those that lost their last holder with it, each once."""
        listed = [DeviceBlock(group, number) for group, blocks in enumerate(said) for number in flat(blocks)]
        for block in listed:
            if listed.count(block) > 1:
                self.add(LAW, f"{what}: {block} is freed twice in one list")
            holders = sorted(self.relation.block_holders(block))
            if holders:
                self.add(LAW, f"{what}: {block} is freed while held by {holders[0]}")
            elif block not in freed:
                self.add(LAW, f"{what}: {block} is freed and was free before")
        missing = freed - set(listed)
        if missing:
            self.add(LAW, f"{what}: {named(missing)} lost the last holder and is not called free")

    def attempt(self, life: Life, event: Any, what: str) -> Attempt:
        found = life.attempts.get(event.operation.operation_id)
        if found is None or found.operation != event.operation:
            self.add(LAW, f"{what}: {event.operation} is not open")
            return Attempt(event.operation, "upload")
        return found

    def release(self, life: Life, attempt: Attempt) -> None:
        number = attempt.operation.operation_id
        self.let_go(Holder(life.key, "dst", number))
        self.let_go(Holder(life.key, "src", number))
        life.attempts.pop(number, None)

    def adopted_areas(self, life: Life, adopted: Ids) -> Ids:
        """Areas of clean tail blocks: a view never holds what the CPU does not have."""
        areas: Ids = {}
        for layer, ids in adopted.items():
            areas[layer] = []
            for logical in ids:
                block = life.tail.get(logical)
                group = self.relation.group_of_layer.get(layer, HOLE)
                if block is None or block.phase != "clean" or group not in block.physical:
                    self.add(LAW, f"layer {layer}: block {logical} is adopted and not a clean tail block")
                else:
                    areas[layer].append(block.physical[group])
        return areas

    def own_sources(self, life: Life) -> None:
        owner = Holder(life.key, "owner")
        self.relation.drop(owner)
        self.relation.put(owner, map(CpuBlock, sorted({*life.sources.values(), *life.stale.values()})))


def areas_of(ids: Ids) -> list[Resource]:
    return [Area(layer, block) for layer, blocks in ids.items() for block in blocks]


def joined(*parts: Ids) -> Ids:
    whole: Ids = {}
    for part in parts:
        for layer, ids in part.items():
            whole[layer] = [*whole.get(layer, []), *ids]
    return whole


def named(items: Iterable[object]) -> str:
    return ", ".join(sorted(str(item) for item in items)) or "nothing"
