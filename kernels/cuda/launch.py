"""Launches: grids that leave compute its multiprocessors, and the arguments of each kernel."""

import numpy as np

from kvsweep.kernels.checks import check_integer
from kvsweep.kernels.cuda.api import CudaDriver, Stream
from kvsweep.kernels.cuda.rows import ALIGNMENT, Descriptor, RowBatch
from kvsweep.kernels.cuda.source import arguments_of
from kvsweep.kernels.errors import KernelArgumentError

THREADS = 256
WARPS = THREADS // 32
TILE_BYTES = 4096
LINK_BLOCKS = 32
"""Thread blocks that read over the link at most: 256 warps with 4 KiB in flight each are more than it carries."""


class Launcher:
    """Queues kernels on a driver's streams; everything handed to it has been checked.

    blocks_per_multiprocessor  cap of a grid: thread blocks of 256 threads over the number of multiprocessors. Two
                               take a quarter of a multiprocessor's threads, and the rest is left to compute
    """

    def __init__(self, driver: CudaDriver, *, blocks_per_multiprocessor: int = 2) -> None:
        self.driver = driver
        cap = check_integer("blocks_per_multiprocessor", blocks_per_multiprocessor, least=1, most=8)
        self._most = cap * driver.multiprocessors

    def copy(self, batch: Descriptor, stream: Stream, *, over_link: bool = False) -> None:
        """Copy every block of the batch as it is. over_link: one side is pinned host memory."""
        tiles = self._tiles(batch)
        self._blocks("copy_blocks", batch, batch.entries * tiles, stream, (tiles,), over_link)

    def unpack(self, batch: Descriptor, stream: Stream, *, over_link: bool = False) -> None:
        """VNNI blocks of the source side to natural order."""
        self._turn("unpack_blocks", batch, stream, over_link)

    def pack(self, batch: Descriptor, stream: Stream, *, over_link: bool = False) -> None:
        """Natural blocks of the source side to VNNI order."""
        self._turn("pack_blocks", batch, stream, over_link)

    def poison(self, batch: Descriptor, pattern: int, stream: Stream) -> None:
        """Fill every block of the destination side with one byte."""
        tiles = self._tiles(batch)
        if batch.entries:
            arguments = arguments_of(
                "poison_blocks",
                *(batch.rows, batch.row_ptr, batch.destination, batch.row_count, batch.entries),
                *(tiles, pattern),
            )
            grid = self._grid(batch.entries * tiles, over_link=False)
            self.driver.launch("poison_blocks", grid=grid, threads=THREADS, arguments=arguments, stream=stream)

    def write_tables(
        self,
        table: int,
        lengths: int,
        generation: int,
        *,
        row_ptr: int,
        ids: int,
        layers: int,
        slots: int,
        shown: int,
        stream: Stream,
    ) -> None:
        """Addresses of int32[layers, slots], int32[layers] and int64, of int32[layers + 1] and int32[n]; then sizes."""
        arguments = arguments_of("write_tables", table, lengths, generation, row_ptr, ids, layers, slots, shown)
        self._rows("write_tables", layers, arguments, stream)

    def remap_tables(
        self,
        origin: int,
        table: int,
        *,
        origin_lengths: int,
        lengths: int,
        generation: int,
        keep_ptr: int,
        keep: int,
        layers: int,
        slots: int,
        shown: int,
        stream: Stream,
    ) -> None:
        """As write_tables, with the kept slots of another table, or of the same one in place."""
        arguments = arguments_of(
            "remap_tables",
            *(origin, table, origin_lengths, lengths, generation, keep_ptr, keep, layers, slots, shown),
        )
        self._rows("remap_tables", layers, arguments, stream)

    # ---- inside

    def _turn(self, kernel: str, batch: Descriptor, stream: Stream, over_link: bool) -> None:
        units = batch.entries * batch.most_heads * 2
        self._blocks(kernel, batch, units, stream, (batch.most_heads, batch.block_size), over_link)

    def _blocks(
        self, kernel: str, batch: Descriptor, units: int, stream: Stream, last: tuple[int, ...], over_link: bool
    ) -> None:
        if not units:
            return
        arguments = arguments_of(
            kernel,
            *(batch.rows, batch.row_ptr, batch.source, batch.destination, batch.row_count, batch.entries),
            *last,
        )
        grid = self._grid(units, over_link=over_link)
        self.driver.launch(kernel, grid=grid, threads=THREADS, arguments=arguments, stream=stream)

    def _rows(self, kernel: str, layers: int, arguments: tuple[np.generic, ...], stream: Stream) -> None:
        if layers:
            grid = min(layers, self._most)
            self.driver.launch(kernel, grid=grid, threads=THREADS, arguments=arguments, stream=stream)

    def _grid(self, units: int, *, over_link: bool) -> int:
        return min(-(-units // WARPS), LINK_BLOCKS if over_link else self._most)

    def _tiles(self, batch: Descriptor) -> int:
        return -(-batch.largest_block // TILE_BYTES)


def check_packing(batch: RowBatch) -> None:
    """Refuse a batch whose sides are not aligned as the packing kernels need them."""
    for side in ("source", "destination"):
        rough = (batch.rows[side] % ALIGNMENT != 0) | (batch.rows[f"{side}_stride"] % ALIGNMENT != 0)
        if rough.any():
            expected = f"blocks at multiples of {ALIGNMENT} bytes"
            at = int(rough.argmax())
            raise KernelArgumentError(side, expected, f"address {int(batch.rows[side][at])} in row {at}")
