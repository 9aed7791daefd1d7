"""What a run in one process is made of: a model's ledger layout, pools that fit a sequence, and what connects them."""

from __future__ import annotations

from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger.layout import LayerLayout, Layout, Packing
from kvsweep.runtime.coordinator import Coordinator
from kvsweep.runtime.driver import Driver, World
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.engine.model import ModelConfig
from kvsweep.transports.host import HostDevice
from kvsweep.transports.producer import HostProducer
from kvsweep.transports.rank import RankWorker

SPARE_BLOCKS = 16
LEDGER_DTYPE = {"fp32": "float32", "bf16": "bfloat16"}


def layout_of(config: ModelConfig, *, model_hash: str, block_size: int, packing: Packing = "natural") -> Layout:
    """The ledger's layout of a model: full layers are group 0, sliding ones follow, one group a window."""
    windows = sorted({layer.window for layer in config.layers if layer.window is not None})
    return Layout.of(
        model_hash=model_hash,
        dtype=LEDGER_DTYPE[config.dtype],
        block_size=block_size,
        packing=packing,
        layers=tuple(
            LayerLayout(
                layer=index,
                group=0 if layer.window is None else 1 + windows.index(layer.window),
                kind=layer.kind,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                window_tokens=layer.window or 0,
            )
            for index, layer in enumerate(config.layers)
        ),
    )


def world_of(layout: Layout, *, tokens: int, settings: Settings) -> World:
    """Pools that hold `tokens` tokens once, the kept set once more, and a few spare blocks.

    Process epochs come from the seed, so that runs repeat.
    """
    whole = -(-tokens // layout.block_size)
    kept = int(settings.selection.budget * whole) + settings.selection.sink_blocks + settings.selection.recent_blocks
    full, seed = whole + SPARE_BLOCKS, settings.seed
    return World(
        layout=layout,
        ranks=((0, 1 + seed % 2**20),),
        producer_epoch=1 + seed % 2**19,
        device_blocks=(whole + kept + SPARE_BLOCKS,) * layout.groups,
        cpu_full_blocks=full,
        cpu_total_blocks=full + (2 * kept if settings.source.kind == "copy" else 0),
    )


def kernels_of(settings: Settings) -> Kernels:
    """What the settings choose. Raises KernelArgumentError where native kernels are asked for and not built."""
    return choose_kernels(settings.kernels.choice, threads=settings.kernels.threads)


def coordinator_of(driver: Driver) -> Coordinator:
    """The driver's ranks on host devices, its producer, and the shell around them; enter it to start."""
    pool, settings = driver.state.pool, driver.settings
    if pool.run is None:
        raise LookupError("the driver is not configured")
    producer = HostProducer(
        pool.layout,
        full_blocks=pool.run.cpu_full_blocks,
        total_blocks=pool.run.cpu_total_blocks,
        process_epoch=pool.producer_epoch,
        kernels=kernels_of(settings),
    )
    devices = [
        HostDevice(
            pool.layout,
            device_blocks=pool.run.device_blocks,
            cpu=producer.memory,
            seed=settings.seed + rank,
            staging_bytes=settings.transfer.staging_bytes,
            staging_slots=settings.transfer.staging_slots,
            kernels=producer.memory.kernels,
        )
        for rank, _ in pool.ranks
    ]
    workers = [
        RankWorker(device, rank=rank, process_epoch=epoch)
        for device, (rank, epoch) in zip(devices, pool.ranks, strict=True)
    ]
    return Coordinator(driver, workers=workers, devices=devices, producer=producer)
