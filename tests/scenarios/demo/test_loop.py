"""The serving loop: rounds beside steps, the tail's rows, what is selected and when."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.scenarios.demo.sessions import (
    SEED,
    cpu_bytes,
    device_bytes,
    generate,
    mirrored,
    opened,
    request_of,
    settings,
    text_tokens,
)

from kvsweep.ledger.ids import HOLE
from kvsweep.ledger.messages import BlockSelection
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.attention import ContiguousKv
from kvsweep.scenarios.demo.loop import SCORE_WINDOW, Scorer, Session
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.run import plain_tokens
from kvsweep.scenarios.demo.sampling import Sampler
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model

BLOCK = 8
PROMPT = 200


@pytest.fixture(scope="module")
def model() -> Model:
    return synthetic_model(SEED)


def silent(what: str, done: int, of: int) -> None:
    """No progress is shown."""


def slow_copies() -> Settings:
    """A block at a time through staging, so that a transfer outlasts several steps."""
    block_bytes = 2 * 3 * BLOCK * 32 * 4
    return settings(transfer={"deadline_s": 600.0, "staging_bytes": 2 * block_bytes, "staging_slots": 2})


# ---- whole runs, on asyncio and on trio


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_rounds_beside_steps_change_no_token(model: Model, temperature: float) -> None:
    prompt = text_tokens(PROMPT)
    async with opened(model, prompt, slow_copies(), block_size=BLOCK, every=8, temperature=temperature) as session:
        session.feed()
        emitted: list[int] = []
        await generate(session, 40, rounds=None, on_step=emitted.append)
        assert len(session.emitted) == 40 <= 1 + sum(emitted)
        assert session.progress.rounds >= 4
        tokens = session.emitted
    sampler = Sampler(temperature=temperature, seed=SEED, request_id="test/0")
    assert tokens == plain_tokens(model, prompt, 40, sampler, silent)


async def test_steps_are_handed_committed_generations_while_a_round_runs(model: Model) -> None:
    """A draft never waits for a copy: some steps end while an upload or a store is under way."""
    async with opened(model, text_tokens(PROMPT), slow_copies(), block_size=BLOCK, every=8) as session:
        session.feed()
        lanes: set[tuple[str, str]] = set()

        def stepped(_: int) -> None:
            request = request_of(session)
            lanes.add((request.upload.phase, request.store.phase))

        await generate(session, 64, rounds=None, on_step=stepped)
        assert {("IDLE", "IDLE"), ("MOVING", "IDLE"), ("IDLE", "MOVING")} <= lanes


async def test_generate_stops_after_so_many_rounds(model: Model) -> None:
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK, every=4) as session:
        session.feed()
        await generate(session, 200, rounds=3, on_step=lambda emitted: None)
        assert session.progress.rounds == 3
        assert len(session.emitted) < 40


# ---- the tail's rows


def expected_rows(model: Model, tokens: list[int]) -> ContiguousKv:
    """Rows of every position but the last, from one plain pass over all of them."""
    cache = ContiguousKv(model.config, len(tokens))
    count = len(tokens) - 1
    model.forward(torch.tensor(tokens[:-1]), torch.arange(count), cache, logits_for=slice(-1, None))
    return cache


def expect_confirmed_rows(session: Session) -> int:
    """Every confirmed position that still has to be in the tail holds the full model's row. Returns how many."""
    cache, size = expected_rows(session.model, session.tokens), session.layout.block_size
    held, compared = device_bytes(session), 0
    first = mirrored(session)
    for layer in range(len(session.layout.layers)):
        k, v = cache.rows(layer)
        for logical in range(first, (len(session.tokens) - 2) // size + 1):
            rows = held[layer, logical].copy().view(np.float32)
            part = slice(logical * size, logical * size + rows.shape[2])
            expected = torch.stack((k[:, part], v[:, part])).numpy()
            # One wrong row differs by 1e-4 and more; another shape of the same product by 1e-5 and less.
            np.testing.assert_allclose(rows, expected, rtol=0, atol=5e-5)
            compared += rows.shape[2]
    return compared


class Dictated(Sampler):
    """Proposes what the target will choose, or something else, so that acceptance is ours to choose."""

    def __init__(self, answers: list[int], accepted: list[int]) -> None:
        super().__init__(temperature=0.0, seed=SEED, request_id="test/0")
        self.answers, self.accepted = answers, accepted
        self.emitted = 0

    def propose(self, logits: torch.Tensor, *, ahead: int) -> int:
        if not self.accepted:
            return super().propose(logits, ahead=ahead)
        right = self.answers[self.emitted + ahead]
        return right if ahead < self.accepted[0] else right ^ 1

    def sample(self, logits: torch.Tensor) -> int:
        self.emitted += 1
        return int(logits.argmax())


@pytest.mark.parametrize("accepted", [[4, 4, 4, 4], [0, 0, 0], [4, 0, 3, 4, 1, 2, 4]])
async def test_g4_rows_below_the_confirmed_position_are_the_full_models(model: Model, accepted: list[int]) -> None:
    """After a draft that was accepted whole, its last token's row was never fed to the draft: the verify wrote it.

    Rejected rows lie above the confirmed position (G4: they belong to no selection) and are written again.
    """
    prompt = text_tokens(PROMPT)
    answers = plain_tokens(model, prompt, 48, Sampler(temperature=0.0, seed=SEED, request_id="test/0"), silent)
    async with opened(model, prompt, settings(), block_size=BLOCK) as session:
        session.sampler = Dictated(answers, [])
        session.feed()
        await session.round()
        for count in accepted:
            session.sampler.accepted = [count]
            before = len(session.emitted)
            session.step()
            assert len(session.emitted) - before == count + 1
            assert expect_confirmed_rows(session) > 0
        assert session.emitted == answers[: len(session.emitted)]


def test_the_row_check_sees_one_wrong_row(model: Model, anyio_backend: str) -> None:
    import anyio

    async def spoil() -> None:
        async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
            session.feed()
            session.step()
            expect_confirmed_rows(session)
            logical, offset = divmod(len(session.tokens) - 2, BLOCK)
            (block,) = (block for block in request_of(session).tail if block.logical == logical)
            session.stack.nodes[0].device.typed(3)[block.physical[0], 1, 0, offset, 5] += 2e-4
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                expect_confirmed_rows(session)

    anyio.run(spoil, backend=anyio_backend)


async def test_d7_g4_a_window_leaves_the_sliding_group_only(model: Model) -> None:
    """D7, G4: blocks that no query can see leave the sliding layers' tail; they are selected and cleared nowhere."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK, every=8) as session:
        session.feed()
        await generate(session, 80, rounds=None, on_step=lambda emitted: None)
        await session.kv.settled()
        window = session.layout.window_tokens(1)
        confirmed = len(session.tokens) - 1
        sliding = {block.logical for block in request_of(session).tail if block.physical[1] != HOLE}
        assert min(sliding) == (confirmed - window + 1) // BLOCK
        view = request_of(session).view
        assert view is not None
        assert view.logical.layers.tolist() == list(session.layout.active_layers)


async def test_a_pack_that_an_open_step_leaves_no_room_for_is_tried_again(model: Model) -> None:
    """Fenced tail blocks are no vacant areas; the view stays as it is, and the next round packs it."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        await session.kv.settled()
        number, _ = session.kv.begin_step([session.key])
        await session.round()
        assert session.progress.packs == 0
        assert session.kv.driver.metrics.remap["layer"] == 1
        session.kv.end_step(number)
        await session.kv.settled()
        await session.round()
        assert session.progress.packs == session.kv.driver.metrics.remap["pack"] == 1


# ---- selecting


@pytest.mark.parametrize("scorer", ["attention", "quest", "recency"])
async def test_e2_e7_a_selection_has_sink_recent_and_the_best_of_the_mirrored_blocks(
    model: Model, scorer: Scorer
) -> None:
    """E2, E7: whole mirrored blocks only; sink and recent are in and count in the budget."""
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK, scorer=scorer) as session:
        session.feed()
        await session.kv.settled()
        whole = PROMPT // BLOCK
        assert session.mirrored_blocks() == mirrored(session) == whole
        selection = session.select()
        assert selection.whole_blocks == whole
        assert selection.effective_budget_blocks == 6
        chosen = selection.logical_blocks_by_layer
        for layer in session.layout.active_layers:
            assert {0, whole - 2, whole - 1} <= set(chosen.row(layer).tolist())


async def test_incumbents_keep_their_place_with_hysteresis(model: Model) -> None:
    """A large factor keeps every resident block that is not recent any more, as far as the budget goes."""

    async def last_two(factor: float) -> list[BlockSelection]:
        made: list[BlockSelection] = []

        def select(session: Session) -> BlockSelection:
            made.append(session.select())
            return made[-1]

        selection = {"incumbent_factor": factor, "budget": 0.5}
        async with opened(
            model, text_tokens(PROMPT), settings(selection=selection), block_size=BLOCK, selector=select
        ) as session:
            session.feed()
            for _ in range(3):
                await session.round()
                for _ in range(6):
                    session.step()
                    await session.kv.settled()
            return made[-2:]

    def kept(pair: list[BlockSelection]) -> int:
        before, after = (one.logical_blocks_by_layer for one in pair)
        return sum(np.intersect1d(ids, after.row(layer)).size for layer, ids in before.items())

    assert kept(await last_two(1e6)) > kept(await last_two(1.0))


async def test_f1_a_selection_of_what_is_resident_moves_nothing_and_publishes(model: Model) -> None:
    """F1: the same selection again is a zero-byte plan; its keep map still reaches the producer."""
    made: list[BlockSelection] = []

    def again(session: Session) -> BlockSelection:
        fresh = session.select()
        if not made:
            made.append(fresh)
        same: Any = made[0]
        return BlockSelection(
            **{name: getattr(same, name) for name in same.__struct_fields__ if name != "selection_revision"},
            selection_revision=fresh.selection_revision,
        )

    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK, selector=again) as session:
        session.feed()
        await session.round()
        before, uploaded = request_of(session), session.kv.driver.metrics.h2d_bytes
        await session.round()
        after = request_of(session)
        assert session.kv.driver.metrics.h2d_bytes == uploaded
        assert (after.map_revision, after.current) == (before.map_revision, before.current)
        assert after.selection_revision == before.selection_revision + 1
        keep = session.stack.producer.keep_map(session.key)
        assert keep is not None
        assert keep.size == made[0].logical_blocks_by_layer.size


def test_query_windows_are_what_the_scores_were_measured_with() -> None:
    assert SCORE_WINDOW == {"attention": 32, "quest": 8, "recency": 1}


async def test_bf16_blocks_reach_the_cpu_bit_for_bit(anyio_backend: str) -> None:
    """C2: bf16 included: the mirror holds the bits that the device holds."""
    model = synthetic_model(SEED, synthetic_config("bf16"))
    async with opened(model, text_tokens(PROMPT), settings(), block_size=BLOCK) as session:
        session.feed()
        before = device_bytes(session)
        await session.kv.settled()
        for (layer, logical), held in before.items():
            copy = cpu_bytes(session, layer, logical)
            assert (copy is None) == (logical >= PROMPT // BLOCK)
            assert copy is None or np.array_equal(copy, held)
