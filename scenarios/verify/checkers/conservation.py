"""Conservation: what the pools gave and took back, held against the pairs that the ownership oracle counts.

free + held + on the way = pool, for every group and the CPU, at every event; at rest nothing is on the way.
"""

from typing import Final

from kvsweep.ledger.ids import Int32, int32_view
from kvsweep.ledger.messages import Release, Reserve, Reserved
from kvsweep.scenarios.verify.checkers.breaks import Breaks
from kvsweep.scenarios.verify.checkers.ownership import Ownership
from kvsweep.scenarios.verify.checkers.relation import CpuBlock, DeviceBlock
from kvsweep.transports.pools import Pools

LAW: Final = "conservation"


class Conservation(Breaks):
    """Blocks that are out of the pools, as the pools' own traffic says; held ones as `ownership` says."""

    def __init__(self, ownership: Ownership) -> None:
        super().__init__()
        self._ownership = ownership
        self._out: set[DeviceBlock] = set()
        self._cpu_out: set[int] = set()

    def begin(self) -> None:
        """What is held now is out of the pools, whoever gave it."""
        self._out = set(self._ownership.relation.device_blocks)
        self._cpu_out = set(self._ownership.relation.cpu_blocks)

    def gave(self, answer: Reserved) -> None:
        """The pools answered a reservation."""
        for group, blocks in enumerate(answer.device or ()):
            for number in int32_view(blocks).tolist():
                block = DeviceBlock(group, number)
                if block in self._out:
                    self.add(LAW, f"{block} is given out and was not back")
                self._out.add(block)
        for number in _cpu(answer.cpu_full, answer.cpu_copy, answer.claimed):
            if number in self._cpu_out:
                self.add(LAW, f"CPU block {number} is given out and was not back")
            self._cpu_out.add(number)

    def took_back(self, effect: Release) -> None:
        """The pools were told to take blocks back."""
        relation = self._ownership.relation
        for group, blocks in enumerate(effect.device):
            for number in int32_view(blocks).tolist():
                block = DeviceBlock(group, number)
                for holder in sorted(relation.block_holders(block))[:1]:
                    self.add(LAW, f"{block} goes back to the pool while held by {holder}")
                if block not in self._out:
                    self.add(LAW, f"{block} goes back to the pool twice")
                self._out.discard(block)
        for number in _cpu(effect.cpu):
            for holder in sorted(relation.holders(CpuBlock(number)))[:1]:
                self.add(LAW, f"CPU block {number} goes back to the pool while held by {holder}")
            if number not in self._cpu_out:
                self.add(LAW, f"CPU block {number} goes back to the pool twice")
            self._cpu_out.discard(number)

    def see(self) -> None:
        """After every event: whatever is held is out of its pool, and the request that reserved a block is known."""
        self.position = self._ownership.position
        relation = self._ownership.relation
        held, cpu = relation.device_blocks, relation.cpu_blocks
        for block in sorted(held - self._out):
            self.add(LAW, f"{block} is held by {min(relation.block_holders(block))} and free")
        for number in sorted(cpu - self._cpu_out):
            self.add(LAW, f"CPU block {number} is held by {min(relation.holders(CpuBlock(number)))} and free")
        for block in sorted(held - self._ownership.reserved_by.keys() - self._ownership.shared):
            self.add(LAW, f"{block} is held and neither reserved by a request nor shared")

    def balance(self, pools: Pools) -> None:
        """While nothing is on the way: free + held = pool, exactly, by the pools' own counts."""
        relation = self._ownership.relation
        held, cpu = relation.device_blocks, relation.cpu_blocks
        for group, pool in enumerate(pools.device.groups):
            count = sum(block.group == group for block in held)
            if pool.free + count != pool.blocks:
                self.add(LAW, f"{pool.name}: {pool.free} free and {count} held of {pool.blocks}")
        full = pools.cpu.full.blocks
        for pool, count in (
            (pools.cpu.full, sum(number < full for number in cpu)),
            (pools.cpu.copies, sum(number >= full for number in cpu)),
        ):
            if pool.free + count != pool.blocks:
                self.add(LAW, f"{pool.name}: {pool.free} free and {count} held of {pool.blocks}")


class WatchedPools(Pools):
    """The same pools; everything that they give and take back is told."""

    def __init__(self, pools: Pools, conservation: Conservation) -> None:
        super().__init__(pools.device, pools.cpu)
        self._conservation = conservation

    def reserve(self, ask: Reserve) -> Reserved:
        answer = super().reserve(ask)
        self._conservation.gave(answer)
        return answer

    def release(self, effect: Release) -> None:
        self._conservation.took_back(effect)
        super().release(effect)


def _cpu(*parts: bytes) -> list[int]:
    ids: list[int] = []
    for part in parts:
        blocks: Int32 = int32_view(part)
        ids += blocks.tolist()
    return ids
