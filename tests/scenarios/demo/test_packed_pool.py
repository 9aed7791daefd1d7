"""A CPU pool in VNNI order: what was stored packed comes back to the device bit for bit."""

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.ids import Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import Packing
from kvsweep.ledger.messages import BlockSelection, OpenTail, SealTail
from kvsweep.runtime.core.upload_plan import adoptable, keep_slots
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.stack import Stack, layout_of, run_config_of
from kvsweep.scenarios.demo.synthetic import synthetic_config

SEED, BLOCK, WHOLE = 20260916, 32, 6
# Layer by layer another list; the second names blocks that the first dropped, so they come from the CPU.
FIRST = {0: [0, 5], 2: [1, 5], 3: [0, 1], 5: [4, 5]}
SECOND = {0: [1, 2], 2: [0, 3], 3: [2, 5], 5: [0, 4]}


def chosen(rows: dict[int, list[int]], key: object, revision: int) -> BlockSelection:
    return BlockSelection(
        request=key,  # type: ignore[arg-type]
        selection_revision=revision,
        block_size=BLOCK,
        logical_blocks_by_layer=Rows.of(rows),
        ranked_tail_by_layer=no_rows(tuple(rows)),
        group_by_layer=int32_bytes([0] * len(rows)),
        whole_blocks=WHOLE,
        effective_budget_blocks=2,
    )


@pytest.mark.parametrize("source", ["source_only", "copy"])
@pytest.mark.parametrize("packing", ["natural", "vnni"])
def test_c2_what_is_stored_packed_is_uploaded_bit_for_bit(packing: Packing, source: str) -> None:
    """C2, A4: bf16 bits of every layer, head and position, after store, drop and upload."""
    anyio.run(_store_and_upload, packing, source)


async def _store_and_upload(packing: Packing, source: str) -> None:
    layout = layout_of(synthetic_config("bf16"), model_hash="test", block_size=BLOCK, packing=packing)
    settings = Settings.of(
        log={"url": "memory:"},
        transfer={"deadline_s": 600.0},
        source={"kind": source, "allow_copy": source == "copy"},
    )
    driver = Driver.open(settings, run_config_of(layout, tokens=(WHOLE + 1) * BLOCK, settings=settings))
    rng = np.random.Generator(np.random.PCG64(SEED))
    shape = (len(layout.layers), WHOLE, 2, 3, BLOCK, 32)  # layer, block, K and V, head, position, element
    written: npt.NDArray[np.uint16] = rng.integers(0, 2**16, shape, dtype=np.uint16)
    async with Stack(driver) as stack:
        kv = stack.kv
        key = kv.open_request("packed")
        kv.handle(OpenTail(request=key, until=WHOLE))
        device, request = stack.nodes[0].device, driver.state.request(key)
        assert request is not None
        for block in request.tail:
            for layer in layout.layers:
                k, v = written[layer.layer, block.logical]
                device.write_rows(layer.layer, block.physical[layer.group], 0, k, v)
        kv.handle(SealTail(request=key, confirmed_tokens=WHOLE * BLOCK))
        await kv.settled()
        for revision, rows in enumerate((FIRST, SECOND), start=1):
            selection = chosen(rows, key, revision)
            await kv.upload(selection, idempotency_key=f"select-{revision}")
            request = driver.state.request(key)
            assert request is not None
            want = selection.logical_blocks_by_layer
            keep, adopt = keep_slots(request, want), adoptable(request, want, layout, shared_table=False)
            await kv.retain(
                key,
                keep,
                adopt=adopt,
                map_revision=request.map_revision,
                selection_revision=revision,
                idempotency_key=f"retain-{revision}",
            )
            now = kv.residency(key)
            for layer_number in rows:
                logical = now.logical_by_slot_by_layer.row(layer_number)
                physical = now.physical_by_slot_by_layer.row(layer_number)
                assert sorted(logical.tolist()) == rows[layer_number]
                held = device.read(layer_number, physical).view(np.uint16).reshape(-1, 2, 3, BLOCK, 32)
                assert np.array_equal(held, written[layer_number, logical]), f"seed {SEED}, layer {layer_number}"
        assert driver.metrics.uploaded_areas == 7
        assert (driver.metrics.cpu_gather_bytes > 0) == (source == "copy")
        kv.finish(key)
