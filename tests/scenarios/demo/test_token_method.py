"""The token method end to end: what the draft reads is the chosen tokens, and the output is still plain decoding's."""

import numpy as np
import pytest
import torch
from tests.scenarios.demo.sessions import (
    SEED,
    area,
    cpu_bytes,
    generate,
    opened,
    reads_of,
    request_of,
    settings,
    text_tokens,
)

from kvsweep.scenarios.demo.attention import attention
from kvsweep.scenarios.demo.loop import Session
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.paged import DraftKv
from kvsweep.scenarios.demo.run import plain_tokens
from kvsweep.scenarios.demo.sampling import Sampler
from kvsweep.scenarios.demo.synthetic import synthetic_model

TOKEN = {"selection": {"method": "token"}, "source": {"kind": "copy", "allow_copy": True}}
BLOCK = 8


@pytest.fixture(scope="module")
def model() -> Model:
    return synthetic_model(SEED)


def packed_bytes(session: Session) -> int:
    """Compare every place of the current view with the full KV, byte for byte; returns the number of tokens."""
    request, packed = request_of(session), session._packed_view()
    assert request.view is not None
    assert packed is not None
    compared = 0
    for layer, physical in request.view.physical.items():
        positions = packed.tokens.row(layer).tolist()
        for at in range(len(physical) * BLOCK):
            place = area(session, layer, int(physical[at // BLOCK]))[:, :, at % BLOCK]
            if at >= len(positions):
                assert not place.any(), f"layer {layer}: place {at} is not empty"
                continue
            full = cpu_bytes(session, layer, positions[at] // BLOCK)
            assert full is not None
            assert (place == full[:, :, positions[at] % BLOCK]).all(), f"layer {layer}: token {positions[at]} at {at}"
            compared += 1
    return compared


@pytest.mark.parametrize("ranks", [1, 3])
async def test_c2_the_device_holds_the_chosen_tokens_and_the_output_is_plain_decoding(model: Model, ranks: int) -> None:
    prompt = text_tokens(203)
    async with opened(model, prompt, settings(**TOKEN), block_size=BLOCK, ranks=ranks) as session:
        session.feed()
        compared = []

        def look(_: int) -> None:
            if request_of(session).view is not None and request_of(session).upload.phase == "IDLE":
                compared.append(packed_bytes(session))

        await generate(session, 64, rounds=None, on_step=look)
        await session.kv.until(lambda: request_of(session).upload.phase == "IDLE")
        compared.append(packed_bytes(session))
        assert max(compared) > 100
        assert session.progress.rounds >= 3
        sampler = Sampler(temperature=0.0, seed=SEED, request_id="test/0")
        assert session.emitted == plain_tokens(model, prompt, 64, sampler, lambda *_: None)


async def test_the_draft_reads_the_packed_tokens_at_their_own_positions(model: Model) -> None:
    """Attention over the paged view equals attention over a plain list of the same tokens."""
    async with opened(model, text_tokens(101), settings(**TOKEN), block_size=BLOCK) as session:
        session.feed()
        await session.round()
        packed = session._packed_view()
        assert packed is not None
        start = len(session.tokens) - 1
        session.room(start + 1)
        number, reads = reads_of(session)
        draft, config = DraftKv(model.config, reads, packed), model.config
        layer = session.layout.active_layers[0]
        rng = torch.Generator().manual_seed(1)
        q, k, v = (
            torch.randn(heads, 1, config.head_dim, generator=rng)
            for heads in (config.heads, config.kv_heads, config.kv_heads)
        )
        at = torch.tensor([start])
        got = draft.attend(layer, q, k, v, at)
        positions = [*packed.tokens.row(layer).tolist(), *range(packed.whole_blocks * BLOCK, start)]
        rows = []
        for position in positions:
            block = cpu_bytes(session, layer, position // BLOCK)
            if block is None:
                block = area(session, layer, reads.tail_of(layer)[position // BLOCK])
            rows.append(np.ascontiguousarray(block[:, :, position % BLOCK]).view(np.float32))
        dense = torch.from_numpy(np.stack(rows, axis=2))  # K and V, head, token, dim
        keys, values = torch.cat((dense[0], k), dim=1), torch.cat((dense[1], v), dim=1)
        expected = attention(q, keys, values, at, torch.tensor([*positions, start]), None)
        session.kv.end_step(number)
        assert torch.allclose(got, expected, atol=1e-6)
        assert len(positions) < start, "tokens were left out"
