"""The whole path on the GPU's device beside the host's: same tokens, same bytes counted, same digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsweep.kernels.cuda.driver import Driver
from kvsweep.scenarios.demo import run_demo
from kvsweep.scenarios.devices import cuda_devices, describe_driver, host_device
from kvsweep.scenarios.engine.bundle import Bundle
from kvsweep.scenarios.engine.model import LayerShape, ModelConfig
from kvsweep.scenarios.engine.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.engine.tokenizer import ByteTokenizer
from kvsweep.scenarios.gpu.bench import SEED
from kvsweep.scenarios.options import DemoOptions
from kvsweep.transports.cuda_paths import PathWish

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


def check_whole(driver: Driver, folder: Path, *, small: bool) -> list[dict[str, Any]]:
    """One record a path over the link and way of retaining; the model runs on the CPU, its KV is on the device."""
    config = synthetic_config() if small else smollm2_shaped()
    bundle = Bundle(synthetic_model(SEED, config), ByteTokenizer(), None, None)
    sizes: dict[str, Any] = (
        {"prompt_tokens": 128, "tokens": 24, "block_size": 8, "every": 4}
        if small
        else {"prompt_tokens": 512, "tokens": 48, "block_size": 32, "every": 8}
    )
    records = []
    for retain in ("move",) if small else ("move", "remap"):
        options = DemoOptions(synthetic=True, retain=retain, **sizes)  # type: ignore[arg-type]

        def run(name: str, device: Any, options: DemoOptions = options) -> Any:
            url = f"sqlite:{folder / f'{options.retain}-{name}.ledger'}"
            return run_demo(options, ledger=url, command=[], bundle=bundle, device=device, turns_per_step=SETTLED_TURNS)

        host = run("host", (host_device, ""))
        for path in PATHS[1:2] if small else PATHS:
            cuda = run(path, (cuda_devices(driver, path), describe_driver(driver)))
            records.append(
                {
                    "retain": retain,
                    "path": path,
                    "model": config.name,
                    "tokens equal plain decoding": cuda.lossless,
                    "tokens equal the host device": cuda.tokens == host.tokens,
                    "bytes equal the host device": cuda.counted == host.counted,
                    "digest equals the host device": cuda.digest == host.digest,
                    "h2d_bytes": cuda.counted["h2d_bytes"],
                    "equal": cuda.lossless and cuda.tokens == host.tokens and cuda.counted == host.counted,
                }
            )
    return records
