"""Which device a rank in this process has: memory of the host, or a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from kvsweep.kernels.cuda.api import CudaDriver
from kvsweep.kernels.cuda.nvidia import NvidiaDriver, why_no_device
from kvsweep.kernels.cuda.source import module_source
from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.layout import Layout
from kvsweep.runtime.settings import Settings
from kvsweep.transports.blocks import BlockMemory
from kvsweep.transports.cuda.device import CudaDevice
from kvsweep.transports.cuda.options import CudaOptions
from kvsweep.transports.cuda.paths import PathWish
from kvsweep.transports.device import ServedDevice
from kvsweep.transports.host import Faults, HostDevice

DeviceKind: TypeAlias = Literal["host", "cuda"]
DEVICES: tuple[DeviceKind, ...] = ("host", "cuda")


class NodeDevice(ServedDevice, Protocol):
    """A device that scenarios look into: its memory, and what goes wrong on purpose."""

    @property
    def memory(self) -> Any: ...
    @property
    def faults(self) -> Faults: ...
    def typed(self, layer: int) -> Any: ...


MakeDevice: TypeAlias = Callable[[Layout, BlockMemory, Settings, Sequence[int], int], NodeDevice]
"""(layout, the CPU shard it reads, settings, blocks of each group, seed) -> a device with empty memory."""


def host_device(
    layout: Layout, shard: BlockMemory, settings: Settings, device_blocks: Sequence[int], seed: int
) -> HostDevice:
    """Memory of this process that behaves like an accelerator where it hurts."""
    return HostDevice(
        layout,
        device_blocks=device_blocks,
        cpu=shard,
        seed=seed,
        staging_bytes=settings.transfer.staging_bytes,
        staging_slots=settings.transfer.staging_slots,
        kernels=shard.kernels,
    )


def cuda_devices(driver: CudaDriver, path: PathWish = "auto") -> MakeDevice:
    """Devices over one driver. Ranks in one process share the GPU; the link is measured for the first of them."""
    options: list[CudaOptions] = []

    def make(
        layout: Layout, shard: BlockMemory, settings: Settings, device_blocks: Sequence[int], seed: int
    ) -> CudaDevice:
        transfer = settings.transfer
        if not options:
            options.append(
                CudaOptions(
                    path=path,
                    staging_bytes=transfer.staging_bytes,
                    staging_slots=transfer.staging_slots,
                    poison_freed=True,
                )
            )
        device = CudaDevice(driver, layout, device_blocks=device_blocks, cpu=shard, options=options[0])
        options[0] = device.options
        return device

    return make


def choose_device(kind: DeviceKind) -> tuple[MakeDevice, str]:
    """How to make a rank's device, and what it is in words ("" for the host's).

    Raises SettingsError for another kind, or for "cuda" where there is no GPU to use.
    """
    if kind == "host":
        return host_device, ""
    if kind != "cuda":
        raise SettingsError("device", " or ".join(DEVICES), repr(kind))
    missing = why_no_device()
    if missing:
        raise SettingsError("device", '"host" on this machine', f'"cuda": {missing}')
    driver = NvidiaDriver()
    return cuda_devices(driver), describe_driver(driver)


def describe_driver(driver: CudaDriver) -> str:
    """What ran, as evidence: the device and the SHA-256 of the kernels' source."""
    source = hashlib.sha256(module_source().encode()).hexdigest()
    return f"cuda device ({driver.name}, kernels SHA-256 {source})"
