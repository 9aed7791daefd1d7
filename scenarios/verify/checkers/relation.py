"""Who holds what, as plain sets: counted anew from the events, by nothing that the core uses."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from kvsweep.ledger.ids import RequestKey

Kind = Literal["view", "tail", "dst", "src", "fence", "owner", "prefix", "step"]


class Area(NamedTuple):
    """One layer's part of a physical block."""

    layer: int
    block: int

    def __str__(self) -> str:
        return f"area (layer {self.layer}, block {self.block})"


class CpuBlock(NamedTuple):
    """A block of the CPU pool."""

    block: int
    pool: str = "cpu"

    def __str__(self) -> str:
        return f"CPU block {self.block}"


class TableRow(NamedTuple):
    """A request's place for one block table on every rank."""

    request: RequestKey
    row: int

    def __str__(self) -> str:
        return f"table row {self.row} of {self.request.request_id}"


class DeviceBlock(NamedTuple):
    """A physical block: id in the pool of its group."""

    group: int
    block: int

    def __str__(self) -> str:
        return f"block {self.block} of group {self.group}"


Resource: TypeAlias = Area | CpuBlock | TableRow


class Holder(NamedTuple):
    """number is a generation, logical block, operation id, fence, prefix or step; group is a tail's."""

    request: RequestKey
    kind: Kind
    number: int = 0
    group: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of {self.request.request_id}"


class Relation:
    """Pairs of resource and holder. A resource is free when its last pair is gone, a block when its last area is."""

    def __init__(self, group_of_layer: Mapping[int, int]) -> None:
        """group_of_layer: the KV-cache group of every layer."""
        self.group_of_layer = group_of_layer
        self._holders: dict[Resource, set[Holder]] = {}
        self._held: dict[Holder, set[Resource]] = {}
        self._areas: Counter[DeviceBlock] = Counter()

    def put(self, holder: Holder, resources: Iterable[Resource]) -> None:
        """The holder holds these too."""
        mine = self._held.setdefault(holder, set())
        for resource in resources:
            mine.add(resource)
            others = self._holders.setdefault(resource, set())
            if not others and isinstance(resource, Area):
                self._areas[self.block_of(resource)] += 1
            others.add(holder)
        if not mine:
            del self._held[holder]

    def drop(self, holder: Holder) -> set[DeviceBlock]:
        """The holder lets go of everything. Returns the blocks that nobody holds any more."""
        freed: set[DeviceBlock] = set()
        for resource in self._held.pop(holder, set()):
            others = self._holders[resource]
            others.discard(holder)
            if others:
                continue
            del self._holders[resource]
            if isinstance(resource, Area):
                block = self.block_of(resource)
                self._areas[block] -= 1
                if not self._areas[block]:
                    del self._areas[block]
                    freed.add(block)
        return freed

    def block_of(self, area: Area) -> DeviceBlock:
        return DeviceBlock(self.group_of_layer[area.layer], area.block)

    def holders(self, resource: Resource) -> frozenset[Holder]:
        return frozenset(self._holders.get(resource, ()))

    def held_by(self, holder: Holder) -> frozenset[Resource]:
        return frozenset(self._held.get(holder, ()))

    def block_holders(self, block: DeviceBlock) -> frozenset[Holder]:
        """Whoever holds any area of the block."""
        layers = [layer for layer, group in self.group_of_layer.items() if group == block.group]
        return frozenset().union(*(self.holders(Area(layer, block.block)) for layer in layers))

    @property
    def all_holders(self) -> tuple[Holder, ...]:
        return tuple(self._held)

    @property
    def device_blocks(self) -> frozenset[DeviceBlock]:
        """Blocks with a held area."""
        return frozenset(self._areas)

    @property
    def cpu_blocks(self) -> frozenset[int]:
        return frozenset(resource.block for resource in self._holders if isinstance(resource, CpuBlock))
