"""Free blocks: the allocation owners. The coordinator decides what is held; these only hand out and take back."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.errors import DoubleFree, LayoutError
from kvsweep.ledger.ids import Int32, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import Release, Reserve, Reserved

NONE: Final[Int32] = np.empty(0, dtype=np.int32)
WINDOW: Final = 1024  # blocks that are looked at for a few


class FreeList:
    """The free ones of `blocks` ids from `first` on. Lowest ids first, so that runs repeat."""

    def __init__(self, name: str, blocks: int, *, first: int = 0) -> None:
        """Raises LayoutError for a negative size. name is how errors call the pool."""
        if blocks < 0 or first < 0:
            raise LayoutError("blocks", "0 or more ids from 0 or more on", f"{blocks} from {first}")
        self.name = name
        self.blocks = blocks
        self.first = first
        self._free = np.ones(blocks, dtype=np.bool_)
        self._count = blocks
        self._lowest = 0  # no place below it is free

    @property
    def free(self) -> int:
        """Blocks that `reserve` could give now."""
        return self._count

    def reserve(self, count: int) -> Int32 | None:
        """int32[count], ascending; None, with nothing reserved, where fewer are free."""
        if count < 0:
            raise LayoutError("count", "0 or more blocks", str(count))
        if count > self._count:
            return None
        if count == 0:
            return NONE
        at = self._lowest_free(count)
        self._free[at] = False
        self._count -= count
        self._lowest = int(at[-1]) + 1
        return (at + self.first).astype(np.int32)

    def _lowest_free(self, count: int) -> npt.NDArray[np.intp]:
        """Places of as many free blocks, of which there are enough. A large pool is not looked through for a few."""
        ahead = max(WINDOW, 2 * count)
        at = np.flatnonzero(self._free[self._lowest : self._lowest + ahead])
        if at.size < count:
            at = np.flatnonzero(self._free[self._lowest :])
        return at[:count] + self._lowest

    def claim(self, ids: Int32) -> bool:
        """Reserve just these ids, all or none of them: False where one is not free or not of this pool."""
        inside = (ids >= self.first) & (ids < self.first + self.blocks)
        if not inside.all() or np.unique(ids).size != ids.size or not self._free[ids - self.first].all():
            return False
        self._free[ids - self.first] = False
        self._count -= ids.size
        return True

    def check_release(self, ids: Int32) -> None:
        """Raise LayoutError for an id of another pool, DoubleFree for one that is free or stands twice in `ids`."""
        if ids.size == 0 or self._plainly_given(ids):
            return
        outside = (ids < self.first) | (ids >= self.first + self.blocks)
        if outside.any():
            got = str(int(ids[outside][0]))
            raise LayoutError(self.name, f"ids in [{self.first}, {self.first + self.blocks})", got)
        values, counts = np.unique(ids, return_counts=True)
        wrong = values[(counts > 1) | self._free[values - self.first]]
        if wrong.size:
            raise DoubleFree(self.name, int(wrong[0]))

    def _plainly_given(self, ids: Int32) -> bool:
        """Whether ids, at least one, are ascending and none is free or of another pool. Most are."""
        if ids[0] < self.first or ids[-1] >= self.first + self.blocks or not (ids[1:] > ids[:-1]).all():
            return False
        return not self._free[ids - self.first].any()

    def release(self, ids: Int32) -> None:
        """Take int32[n] ids back. Raises as `check_release`; then nothing is taken back."""
        self.check_release(ids)
        self.take_back(ids)

    def take_back(self, ids: Int32) -> None:
        """`release` for ids that `check_release` has found nothing wrong with."""
        if ids.size:
            self._free[ids - self.first] = True
            self._count += ids.size
            self._lowest = min(self._lowest, int(ids.min()) - self.first)


class DevicePools:
    """One free list a KV-cache group."""

    def __init__(self, layout: Layout, blocks: Sequence[int]) -> None:
        """blocks: pool size of each group. Raises LayoutError."""
        if len(blocks) != layout.groups or any(count < 1 for count in blocks):
            raise LayoutError("blocks", f"at least 1 block for each of {layout.groups} groups", str(tuple(blocks)))
        self.groups = tuple(FreeList(f"device pool of group {group}", count) for group, count in enumerate(blocks))

    @property
    def free(self) -> tuple[int, ...]:
        """Free blocks a group."""
        return tuple(group.free for group in self.groups)

    def reserve(self, group: int, count: int) -> Int32 | None:
        """int32[count] of one group, or None; see FreeList.reserve."""
        return self.groups[group].reserve(count)

    def release(self, group: int, blocks: Int32) -> None:
        """Take blocks of one group back; see FreeList.release."""
        self.groups[group].release(blocks)


class CpuPool:
    """CPU blocks: `full` hands out [0, K), `copies` hands out [K, N)."""

    def __init__(self, *, full_blocks: int, total_blocks: int) -> None:
        """Raises LayoutError unless N ≥ K ≥ 1."""
        if full_blocks < 1 or total_blocks < full_blocks:
            raise LayoutError("total_blocks", "N ≥ K ≥ 1", f"N {total_blocks}, K {full_blocks}")
        self.full = FreeList("CPU pool", full_blocks)
        self.copies = FreeList("CPU copy pool", total_blocks - full_blocks, first=full_blocks)

    @property
    def free(self) -> tuple[int, int]:
        """Free full blocks, free copy destinations."""
        return self.full.free, self.copies.free

    def check_release(self, ids: Int32) -> None:
        """Raise as FreeList.check_release; ids of both kinds may be mixed."""
        if ids.size:
            self.full.check_release(ids[ids < self.full.blocks])
            self.copies.check_release(ids[ids >= self.full.blocks])

    def release(self, ids: Int32) -> None:
        """Take int32[n] ids of either kind back, all or none of them."""
        self.check_release(ids)
        self.take_back(ids)

    def take_back(self, ids: Int32) -> None:
        """`release` for ids that `check_release` has found nothing wrong with."""
        if ids.size:
            self.full.take_back(ids[ids < self.full.blocks])
            self.copies.take_back(ids[ids >= self.full.blocks])


class Pools:
    """Device and CPU together: what answers `Reserve` and obeys `Release`, all or nothing over every pool."""

    def __init__(self, device: DevicePools, cpu: CpuPool) -> None:
        self.device = device
        self.cpu = cpu

    def reserve(self, ask: Reserve) -> Reserved:
        """The answer, with the same cause. `device` is None where a pool cannot give; `free` is then of that pool.

        Raises LayoutError for a negative count or another number of groups.
        """
        if len(ask.device) != len(self.device.groups):
            raise LayoutError("device", f"a count for each of {len(self.device.groups)} groups", str(ask.device))
        claim = int32_view(ask.claim)
        wanted = list(zip((*self.device.groups, self.cpu.full, self.cpu.copies), self._counts(ask), strict=True))
        for pool, count in wanted:
            if count < 0:
                raise LayoutError(pool.name, "0 or more blocks", str(count))
            if count + (claim.size if pool is self.cpu.full else 0) > pool.free:
                return Reserved(cause=ask.cause, device=None, cpu_full=b"", cpu_copy=b"", free=pool.free)
        if claim.size and not self.cpu.full.claim(claim):
            return Reserved(cause=ask.cause, device=None, cpu_full=b"", cpu_copy=b"", free=self.cpu.full.free)
        given = [b"" if (ids := pool.reserve(count)) is None else ids.tobytes() for pool, count in wanted]
        *device, full, copy = given
        return Reserved(
            cause=ask.cause,
            device=tuple(device),
            cpu_full=full,
            cpu_copy=copy,
            free=min(self.device.free),
            claimed=ask.claim,
        )

    def release(self, effect: Release) -> None:
        """Take everything back. Raises LayoutError or DoubleFree naming the block; then nothing is taken back."""
        if len(effect.device) != len(self.device.groups):
            raise LayoutError("device", f"ids for each of {len(self.device.groups)} groups", f"{len(effect.device)}")
        blocks, cpu = [int32_view(ids) for ids in effect.device], int32_view(effect.cpu)
        for group, ids in zip(self.device.groups, blocks, strict=True):
            group.check_release(ids)
        self.cpu.check_release(cpu)
        for group, ids in zip(self.device.groups, blocks, strict=True):
            group.take_back(ids)
        self.cpu.take_back(cpu)

    def _counts(self, ask: Reserve) -> tuple[int, ...]:
        return (*ask.device, ask.cpu_full, ask.cpu_copy)
