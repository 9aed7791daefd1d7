"""An in-house serving loop around kvsweep, with random numbers for a model: two ranks, one request that grows.

Run: python examples/embed.py
"""

import anyio
import numpy as np

from kvsweep import Driver, Layout, Settings, select_blocks
from kvsweep.ledger import Finish, LayerLayout, OpenTail, SealTail
from kvsweep.runtime import RunConfig, adoptable, keep_slots
from kvsweep.scenarios.demo.stack import Stack  # ranks on host devices in this process; yours are processes with GPUs

BLOCK, PROMPT, EMIT = 16, 256, 96  # tokens
LAYOUT = Layout.of(
    model_hash="example",
    dtype="float32",
    block_size=BLOCK,
    layers=tuple(LayerLayout(layer=n, group=0, kind="full", kv_heads=4, head_dim=32) for n in range(6)),
)


async def serve(driver: Driver, random: np.random.Generator) -> None:
    async with Stack(driver) as stack:
        kv, key, tokens, revision = stack.kv, stack.kv.open_request("chat/42"), 0, 0
        for width in (PROMPT, *[1] * EMIT):  # a prefill, then one token a step
            kv.handle(OpenTail(request=key, until=-(-(tokens + width) // BLOCK)))  # room for what the step writes
            step, _handed = kv.begin_step([key])  # _handed[key].generation is what attention reads in this step
            tail = {block.logical: block.physical[0] for block in driver.state.requests["chat/42"].tail}
            for at in range(tokens, tokens + width):  # the model's attention kernel would write these rows
                for node in stack.nodes:
                    rows = random.standard_normal((node.layout.layers[0].kv_heads, 1, 32), dtype=np.float32)
                    for layer in range(len(LAYOUT.layers)):
                        node.device.write_rows(layer, tail[at // BLOCK], at % BLOCK, rows, rows)
            tokens += width
            kv.end_step(step)
            kv.handle(SealTail(request=key, confirmed_tokens=tokens))  # whole blocks are mirrored to the CPU
            await kv.until(lambda: driver.state.requests["chat/42"].store.phase == "IDLE", about=key)
            if width > 1 or tokens % 32 == 0:
                revision += 1
                whole = len(driver.state.requests["chat/42"].source) // 4  # blocks that the CPU holds
                selection = select_blocks(
                    random.random((6, whole), dtype=np.float32),
                    request=key, revision=revision, layout=LAYOUT, policy=driver.settings.selection,
                )  # fmt: skip
                await kv.upload(selection, idempotency_key=f"select-{revision}")
                request, want = driver.state.requests["chat/42"], selection.logical_blocks_by_layer
                done = await kv.retain(
                    key, keep_slots(request, want), adopt=adoptable(request, want, LAYOUT, shared_table=False),
                    map_revision=request.map_revision, selection_revision=revision, idempotency_key=f"keep-{revision}",
                )  # fmt: skip
                print(f"{tokens} tokens: {done.method}, released {done.metrics.physical_blocks_released} blocks")
        kv.handle(Finish(request=key))


if __name__ == "__main__":
    world = RunConfig(layout=LAYOUT, ranks=((0, 1), (1, 1)), producer_epoch=1, device_blocks=(48,), cpu_full_blocks=32, cpu_total_blocks=32)  # fmt: skip # noqa: E501
    anyio.run(serve, Driver.open(Settings.of(log={"url": "memory:"}), world), np.random.default_rng(20260916))
