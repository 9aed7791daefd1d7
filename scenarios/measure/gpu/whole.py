"""The whole path on the GPU's device beside the host's: same tokens, same bytes counted, same digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from kvsweep.kernels.cuda.api import CudaDriver
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.devices import MakeDevice, cuda_devices, describe_driver, host_device
from kvsweep.scenarios.demo.model import LayerShape, ModelConfig
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.result import DemoResult
from kvsweep.scenarios.demo.run import run_demo
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.tokenizer import ByteTokenizer
from kvsweep.scenarios.measure.gpu.bench import SEED
from kvsweep.transports.cuda.paths import PathWish

Retain: TypeAlias = Literal["remap", "move"]
SETTLED_TURNS = 400
"""Turns after each step in which either device ends what it was given."""
PATHS: tuple[PathWish, ...] = ("auto", "pull", "batch", "staged")


def smollm2_shaped() -> ModelConfig:
    """SmolLM2-135M's layers, heads and sizes for random weights; one id a byte instead of its vocabulary."""
    return ModelConfig(
        name="random weights at the shapes of SmolLM2-135M",
        layers=(LayerShape("full"),) * 30,
        hidden=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn=1536,
        vocab=256,
        context=8192,
        rope_base=100000.0,
        norm_eps=1e-5,
        dtype="fp32",
    )


def check_whole(driver: CudaDriver, folder: Path, *, small: bool) -> list[dict[str, Any]]:
    """One record a path over the link and way of retaining; the model runs on the CPU, its KV is on the device."""
    torch.set_num_threads(1)  # as when a model is loaded: the low bits depend on their number
    config = synthetic_config() if small else smollm2_shaped()
    bundle = Bundle(synthetic_model(SEED, config), ByteTokenizer(), None, None)
    plans: list[tuple[Retain, tuple[PathWish, ...]]] = [("move", ("pull",) if small else PATHS)]
    if not small:
        plans.append(("remap", ("auto",)))
    return [record for retain, paths in plans for record in _compare(driver, folder, bundle, retain, paths, small)]


def _compare(
    driver: CudaDriver, folder: Path, bundle: Bundle, retain: Retain, paths: tuple[PathWish, ...], small: bool
) -> list[dict[str, Any]]:
    prompt, block = (128, 8) if small else (384, 16)
    options = DemoOptions(synthetic=True, prompt_tokens=prompt, tokens=24, block_size=block, every=4, retain=retain)

    def run(name: str, device: tuple[MakeDevice, str]) -> DemoResult:
        url = f"sqlite:{folder / f'{retain}-{name}.ledger'}"
        return run_demo(options, ledger=url, command=[], bundle=bundle, device=device, turns_per_step=SETTLED_TURNS)

    host = run("host", (host_device, ""))
    records = []
    for path in paths:
        cuda = run(path, (cuda_devices(driver, path), describe_driver(driver)))
        same = cuda.tokens == host.tokens and cuda.counted == host.counted and cuda.lossless == host.lossless
        records.append(
            {
                "model": bundle.model.config.name,
                "retain": retain,
                "path": path,
                "equal": same,  # tokens, and the bytes that every memory counted, with those of the host device
                "tokens equal plain decoding": cuda.lossless,
                # The order of events follows how long copies take: on a GPU it may differ where the bytes do not.
                "digest equals the host device": cuda.digest == host.digest,
                **{name: cuda.counted[name] for name in ("h2d_bytes", "d2h_bytes", "resident_moved_bytes")},
            }
        )
    return records
