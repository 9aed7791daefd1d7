"""What a CUDA device may be told, checked once."""

from dataclasses import dataclass

from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.cuda.paths import PATH_WISHES, Measured, PathWish
from kvsweep.transports.space import BlockSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """Sizes and choices of a CUDA device.

    path           how blocks cross the link: "auto" by measurement, "pull" by a kernel, "batch" by the copy engine,
                   "staged" by the CPU through pinned staging (for memory that cannot be page-locked)
    measured       for "auto": an earlier measurement of this machine; empty measures at start, which waits
    staging_bytes  of all slots together; a slot must hold one block of every group
    descriptor_bytes, descriptor_slots  of each slot, and how many: a launch describes its rows and ids in one. A slot
                   also carries a whole table, and is made larger where it has to be
    rows           table rows over all requests
    table_slots    of one layer in one row, at most; None takes the size of the largest pool
    operations     queued or completed and not yet polled, at most
    poison_freed   whether freed blocks are overwritten, so that who still reads them sees it; waits for that
    blocks_per_multiprocessor  cap of a kernel's grid, see Launcher
    """

    path: PathWish = "auto"
    measured: tuple[Measured, ...] = ()
    staging_bytes: int = 64 << 20
    staging_slots: int = 2
    descriptor_bytes: int = 1 << 20
    descriptor_slots: int = 8
    rows: int = 4096
    table_slots: int | None = None
    operations: int = 1024
    poison_freed: bool = False
    blocks_per_multiprocessor: int = 2

    def check(self, space: BlockSpace) -> None:
        """Raise LayoutError naming the option that cannot be meant, for memories of these blocks."""
        for name in ("operations", "staging_slots", "descriptor_slots", "descriptor_bytes"):
            if getattr(self, name) < 1:
                raise LayoutError(name, "at least 1", str(getattr(self, name)))
        if self.path not in PATH_WISHES:
            raise LayoutError("path", " or ".join(PATH_WISHES), repr(self.path))
        largest = max(shape.block_bytes for shape in space.shapes)
        if self.slot_bytes < largest:
            expected = f"at least {largest * self.staging_slots} (one block of {largest} bytes in each of"
            raise LayoutError("staging_bytes", f"{expected} {self.staging_slots} slots)", str(self.staging_bytes))

    @property
    def slot_bytes(self) -> int:
        """Bytes of one staging slot."""
        return self.staging_bytes // self.staging_slots


DEFAULTS = CudaOptions()
