"""What a run is made of: layout, pool sizes, living processes. A ledger begins with it, and is opened again with it."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.events import Implementation, RankEpochs, RunConfigured
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.state import PoolState
from kvsweep.transports.pools import CpuPool, DevicePools, Pools


class RunConfig(Struct, frozen=True, kw_only=True):
    """Sizes and process epochs that a run starts with."""

    layout: Layout
    ranks: RankEpochs
    producer_epoch: int
    device_blocks: tuple[int, ...]  # a pool size for each group
    cpu_full_blocks: int  # K
    cpu_total_blocks: int  # N

    def configured(self, evidence: str, kernels: str) -> RunConfigured:
        """First event of a new ledger (J1)."""
        return RunConfigured(
            request=POOL,
            seq=0,
            layout=self.layout,
            ranks=self.ranks,
            producer_epoch=self.producer_epoch,
            device_blocks=self.device_blocks,
            cpu_full_blocks=self.cpu_full_blocks,
            cpu_total_blocks=self.cpu_total_blocks,
            evidence=evidence,
            implementation=Implementation(kernels=kernels),
        )

    def pools(self) -> Pools:
        """Free lists of these sizes, nothing given away yet."""
        return Pools(
            DevicePools(self.layout, self.device_blocks),
            CpuPool(full_blocks=self.cpu_full_blocks, total_blocks=self.cpu_total_blocks),
        )

    def newer_than(self, pool: PoolState) -> "RunConfig":
        """The same in processes that began after those the ledger knows: for hosts that run them all themselves.

        An epoch that is newer already stays as it is.
        """
        known = dict(pool.ranks)
        ranks = tuple((rank, max(epoch, known.get(rank, 0) + 1)) for rank, epoch in self.ranks)
        return replace(self, ranks=ranks, producer_epoch=max(self.producer_epoch, pool.producer_epoch + 1))

    def expect_continues(self, pool: PoolState) -> None:
        """Raise LogError naming every field in which this cannot follow what the ledger began with.

        Sizes and layout are the same, every rank is a new process, and the producer is the one known or a newer one.
        """
        faults = [*self._changed(pool.run), *self._not_newer(pool)] if pool.run is not None else []
        if faults:
            raise LogError(f"the ledger cannot go on with this run: {'; '.join(faults)}")

    def _changed(self, run: RunConfigured) -> Iterator[str]:
        for field in self.layout.__struct_fields__:
            ours, theirs = getattr(self.layout, field), getattr(run.layout, field)
            if ours != theirs:
                yield f"layout.{field}: expected {theirs!r}, got {ours!r}"
        for field in ("device_blocks", "cpu_full_blocks", "cpu_total_blocks"):
            ours, theirs = getattr(self, field), getattr(run, field)
            if ours != theirs:
                yield f"{field}: expected {theirs}, got {ours}"

    def _not_newer(self, pool: PoolState) -> Iterator[str]:
        numbers, known = [rank for rank, _ in self.ranks], [rank for rank, _ in pool.ranks]
        if numbers != known:
            yield f"ranks: expected {known}, got {numbers}"
            return
        for (rank, before), (_, now) in zip(pool.ranks, self.ranks, strict=True):
            if now <= before:
                yield f"rank {rank}: expected a process epoch above {before}, got {now}"
        if self.producer_epoch < pool.producer_epoch:
            yield f"producer: expected process epoch {pool.producer_epoch} or above, got {self.producer_epoch}"
