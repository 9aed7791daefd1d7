"""Paged readers and writers: what a step is handed, where its rows go, and which blocks it may not see."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.scenarios.demo.sessions import SEED, area, opened, reads_of, request_of, settings, text_tokens

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Rows, no_rows
from kvsweep.ledger.messages import OpenTail
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.paged import DraftKv, FullKv, QueryWindow, StepReads, as_numpy, memory_view
from kvsweep.scenarios.demo.stack import layout_of
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.transports.blocks import BlockMemory

BLOCK, PROMPT = 8, 160


@pytest.fixture(scope="module")
def model() -> Model:
    return synthetic_model(SEED)


@pytest.fixture
def anyio_backend() -> str:
    """Nothing here waits for anything but the coordinator; both backends are tested with the loop."""
    return "asyncio"


async def test_a_step_reads_the_generation_that_it_was_handed(model: Model) -> None:
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        number, before = reads_of(session)
        session.kv.end_step(number)
        assert all(not blocks for blocks in before.resident[0].values())
        await session.round()
        number, after = reads_of(session)
        view = request_of(session).view
        assert view is not None
        for layer in session.layout.active_layers:
            logical, physical = view.logical.row(layer).tolist(), view.physical.row(layer).tolist()
            assert after.resident[0][layer] == dict(zip(logical, physical, strict=True))
        session.kv.end_step(number)


async def test_g1_a_step_still_reads_its_generation_after_the_next_was_committed(model: Model) -> None:
    """G1: the view that it was handed, by the rank's own table; not the one that is current by now."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        await session.round()
        kv = session.kv
        number, handed = kv.begin_step([session.key])
        old = request_of(session).view
        assert old is not None
        layers = session.layout.active_layers
        other = replace(
            session.select(),
            logical_blocks_by_layer=Rows.of({layer: np.arange(3 + row, 8 + row) for row, layer in enumerate(layers)}),
            ranked_tail_by_layer=no_rows(layers),
        )
        await kv.upload(other, idempotency_key="other")
        assert request_of(session).current != handed[session.key].generation
        reads = StepReads(kv.driver.state, session.key, handed[session.key], session.stack.nodes)
        for layer in layers:
            pairs = zip(old.logical.row(layer).tolist(), old.physical.row(layer).tolist(), strict=True)
            assert reads.resident[0][layer] == dict(pairs)
        kv.end_step(number)


async def test_b6_an_open_step_keeps_its_blocks_until_it_ends(model: Model) -> None:
    """B6, G1: blocks that left the tail keep their bytes while a step may read them, and are poisoned after it."""
    never = settings(retain={"pack": "never"})
    async with opened(model, text_tokens(PROMPT), never, block_size=BLOCK) as session:
        session.feed()
        await session.kv.settled()
        number, reads = reads_of(session)
        dropped = {logical: physical for logical, physical in reads.tail_of(0).items() if logical < PROMPT // BLOCK}
        await session.round()
        kept = {logical: area(session, 0, physical) for logical, physical in dropped.items()}
        assert all(np.isfinite(held.view(np.float32)).all() for held in kept.values())
        session.kv.end_step(number)
        await session.kv.settled()
        owned = set(session.kv.driver.state.ownership.owned(session.key, session.layout)[0].tolist())
        gone = [physical for physical in dropped.values() if physical not in owned]
        assert gone
        assert all(np.isnan(area(session, 0, physical).view(np.float32)).all() for physical in gone)


async def test_a_draft_sees_no_block_past_the_position_it_feeds(model: Model) -> None:
    """Room for the whole draft is opened ahead; blocks that lie ahead hold poison and are not read."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        session.kv.handle(OpenTail(request=session.key, until=PROMPT // BLOCK + 3))
        number, reads = reads_of(session)
        logits = model.forward(torch.tensor([65]), torch.tensor([PROMPT]), DraftKv(model.config, reads))
        assert bool(torch.isfinite(logits).all())
        session.kv.end_step(number)


async def test_rows_go_to_the_blocks_that_cover_their_positions(model: Model) -> None:
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        session.kv.handle(OpenTail(request=session.key, until=PROMPT // BLOCK + 3))
        number, reads = reads_of(session)
        rng = np.random.Generator(np.random.PCG64(SEED))
        rows = torch.from_numpy(rng.standard_normal((2, 3, 13, 32), dtype=np.float32))
        first = PROMPT + 5
        reads.write(3, rows[0], rows[1], first)
        for at in range(13):
            logical, offset = divmod(first + at, BLOCK)
            held = area(session, 3, reads.tail_of(3)[logical]).view(np.float32)
            assert np.array_equal(held[:, :, offset], rows[:, :, at].numpy()), f"seed {SEED}, row {at}"
        session.kv.end_step(number)


async def test_a_row_without_a_tail_block_is_refused(model: Model) -> None:
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        number, reads = reads_of(session)
        rows = torch.zeros((2, 1, 32))
        with pytest.raises(KeyError):
            reads.write(0, rows, rows, PROMPT + 100 * BLOCK)
        session.kv.end_step(number)


async def test_the_target_reads_mirrored_blocks_from_the_cpu(model: Model) -> None:
    """Spoil one CPU row: the full pass feels it, so it was read there; the draft, which has a view, does not."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        await session.round()
        await session.kv.settled()
        shards, queries = session.stack.producer.shards, QueryWindow(session.layout.active_layers, 4)
        at, token = torch.tensor([len(session.tokens) - 1]), torch.tensor([session.tokens[-1]])
        logits = []
        for _ in range(2):
            session.kv.handle(OpenTail(request=session.key, until=PROMPT // BLOCK + 1))
            number, reads = reads_of(session)
            full = model.forward(token, at, FullKv(model.config, reads, shards, queries))
            draft = model.forward(token, at, DraftKv(model.config, reads))
            session.kv.end_step(number)
            logits.append((full, draft))
            shards[0].typed(0)[request_of(session).source_of(3)] += 1.0
        assert not torch.equal(logits[0][0], logits[1][0])
        assert torch.equal(logits[0][1], logits[1][1])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_view_is_the_memory_itself(dtype: str) -> None:
    config = synthetic_config("bf16" if dtype == "bf16" else "fp32")
    layout = layout_of(config, model_hash="test", block_size=BLOCK)
    memory = BlockMemory.of_device(layout, (4, 4))
    view = memory_view(memory, 0)
    assert view.dtype == config.torch_dtype
    rows = torch.full((3, BLOCK, 32), 1.5, dtype=config.torch_dtype)
    memory.write_tokens(0, 2, 0, as_numpy(rows), as_numpy(rows))
    assert bool((view[2] == 1.5).all())
    assert bool(torch.isnan(view[1].float()).all())


def test_c2_packed_cpu_memory_has_no_view_by_element() -> None:
    """C2: a packed pool is read through copies in natural order, or not at all."""
    layout = layout_of(synthetic_config("bf16"), model_hash="test", block_size=32, packing="vnni")
    with pytest.raises(LayoutError, match="packing"):
        memory_view(BlockMemory.of_cpu(layout, 4), 0)


def test_a_query_window_keeps_the_last_confirmed_rows() -> None:
    window = QueryWindow((0, 2), 3)

    def rows(*positions: int) -> torch.Tensor:
        return torch.tensor([[[float(at)] for at in positions]] * 2)

    window.add(0, rows(0, 1, 2, 3, 4), torch.arange(5))
    window.add(1, rows(9), torch.tensor([9]))  # a layer that is not scored
    window.add(0, rows(5, 6), torch.tensor([5, 6]))
    # 5 was rejected: its position comes again with another row, and 6 is forgotten.
    window.add(0, rows(50), torch.tensor([5]))
    found, at = window.confirmed(0, 6)
    assert at.tolist() == [4, 5]
    assert found[:, :, 0].tolist() == [[4.0, 50.0]] * 2
    assert window.confirmed(0, 5)[1].tolist() == [4]
    with pytest.raises(KeyError):
        window.confirmed(1, 6)
