"""One recorded selection, several ways to make it resident: every byte and every draft logit has to be the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from tests.scenarios.demo.sessions import (
    SEED,
    UInt8,
    cpu_bytes,
    device_bytes,
    draft_logits,
    first_difference,
    opened,
    selected,
    settings,
    text_tokens,
)
from torch import Tensor

from kvsweep.ledger.messages import BlockSelection
from kvsweep.scenarios.demo.attention import ContiguousKv, attention
from kvsweep.scenarios.demo.bundle import Bundle, load_smollm2
from kvsweep.scenarios.demo.loop import Session
from kvsweep.scenarios.demo.model import LayerShape, Model, ModelConfig
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.text import load_text

COPY = {"kind": "copy", "allow_copy": True}
WAYS: dict[str, dict[str, Any]] = {
    "remap, source-only": {},
    "remap, copy": {"source": COPY},
    "remap, never packed": {"retain": {"pack": "never"}},
    "byte move, source-only": {"retain": {"layer_tables": False}},
    "byte move, copy": {"retain": {"layer_tables": False}, "source": COPY},
}
BASE = "remap, source-only"


@dataclass
class Round:
    """What stood on the device after one round, and what a draft made of it."""

    selection: BlockSelection
    blocks: dict[tuple[int, int], UInt8]
    logits: Tensor
    mirrored: int  # blocks compared with the CPU's


@dataclass
class Run:
    rounds: list[Round] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A model, a prompt and how many rounds; steps between rounds let the tail grow and be adopted."""

    model: Model
    prompt: list[int]
    block_size: int
    rounds: int
    steps: int


def run(case: Case, *, recorded: list[BlockSelection] | None = None, ranks: int = 1, **tables: Any) -> Run:
    """Rounds and steps in turn, nothing overlapping, so that every way takes the same steps."""
    return anyio.run(_run, case, recorded, ranks, tables)


async def _run(case: Case, recorded: list[BlockSelection] | None, ranks: int, tables: dict[str, Any]) -> Run:
    again: Iterator[BlockSelection] = iter(recorded or ())
    used: list[BlockSelection] = []

    def select(session: Session) -> BlockSelection:
        used.append(session.select() if recorded is None else next(again))
        return used[-1]

    result = Run()
    async with opened(
        case.model, case.prompt, settings(**tables), block_size=case.block_size, selector=select, ranks=ranks
    ) as session:
        session.feed()
        await session.kv.settled()
        for _ in range(case.rounds):
            await session.round()
            await session.kv.settled()
            selected(session, used[-1])
            blocks = device_bytes(session)
            result.rounds.append(
                Round(
                    selection=used[-1],
                    blocks=blocks,
                    logits=draft_logits(session, case.prompt[:4]),
                    mirrored=_expect_equal_to_cpu(session, blocks),
                )
            )
            for _ in range(case.steps):
                session.step()
                await session.kv.settled()
        result.tokens = session.tokens
        metrics = session.kv.driver.metrics
        result.modes = metrics.remap
        result.metrics = {
            name: getattr(metrics, name) for name in ("cpu_gather_bytes", "h2d_bytes", "resident_moved_bytes")
        }
        moved = [node.memory.traffic.moved_bytes for node in session.stack.nodes]
        assert sum(moved) == metrics.resident_moved_bytes
        assert all(moved) == any(moved), "a rank moved nothing where others did"
        assert session.stack.producer.cpu_gather_bytes == metrics.cpu_gather_bytes
    return result


def _expect_equal_to_cpu(session: Session, blocks: dict[tuple[int, int], UInt8]) -> int:
    """Every block that the CPU has holds the same bytes there. Returns how many were compared."""
    on_cpu = {key: cpu_bytes(session, *key) for key in blocks}
    both = {key: held for key, held in on_cpu.items() if held is not None}
    assert first_difference({key: blocks[key] for key in both}, both) is None
    return len(both)


def recorded_of(run: Run) -> list[BlockSelection]:
    return [one.selection for one in run.rounds]


def expect_same(base: Run, other: Run, name: str) -> None:
    assert len(other.rounds) == len(base.rounds)
    for number, (ours, theirs) in enumerate(zip(base.rounds, other.rounds, strict=True)):
        differs = first_difference(ours.blocks, theirs.blocks)
        assert differs is None, f"{name}, round {number}: {differs}"
        assert torch.equal(ours.logits, theirs.logits), (
            f"{name}, round {number}: draft logits differ by {float((ours.logits - theirs.logits).abs().max())}"
        )
    assert other.tokens == base.tokens


# ---- the synthetic model: full and sliding-window layers


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def mixed(request: pytest.FixtureRequest) -> Case:
    config = synthetic_config(request.param)
    return Case(synthetic_model(SEED, config), text_tokens(392), block_size=16, rounds=4, steps=4)


@pytest.fixture(scope="module")
def mixed_base(mixed: Case) -> Run:
    return run(mixed)


@pytest.mark.parametrize("way", [way for way in WAYS if way != BASE])
def test_c1_c2_a4_every_way_gives_equal_bytes_and_draft_logits(mixed: Case, mixed_base: Run, way: str) -> None:
    """C1, C2, A4: one selection; all layers, heads and valid positions; no tolerance, bf16 included."""
    other = run(mixed, recorded=recorded_of(mixed_base), **WAYS[way])
    expect_same(mixed_base, other, way)
    assert all(one.mirrored > 0 for one in other.rounds)
    _expect_taken(way, mixed_base, other)


def _expect_taken(way: str, base: Run, other: Run) -> None:
    """The way was taken at all: equal results would say nothing otherwise."""
    copied, moved = "copy" in way, "byte move" in way
    assert (other.metrics["cpu_gather_bytes"] > 0) == copied
    assert other.metrics["h2d_bytes"] > 0
    assert other.modes["pack"] == (0 if "never" in way else base.modes["pack"] if not moved else other.modes["pack"])
    assert (other.modes["move"] > 0) == moved
    assert (other.modes["layer"] > 0) != moved
    assert base.modes["layer"] > 0


def test_c1_a_shared_selection_is_remapped_and_packed_with_equal_results(mixed: Case) -> None:
    """C1, B1: one list for all layers; the shared remap beside a remap of each layer's table cannot be told apart."""
    shared = {"shared": True}
    base = run(mixed, selection=shared)
    assert base.modes["shared"] > 0
    other = run(mixed, recorded=recorded_of(base), selection=shared, source=COPY, retain={"pack": "never"})
    expect_same(base, other, "copy, never packed")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a4_c2_heads_over_ranks_joined_equal_one_rank(mixed: Case, mixed_base: Run, ranks: int) -> None:
    """A4, C2: 3 KV heads as 2 + 1 and 1 + 1 + 1; the bytes joined over the ranks, the logits, and what they cost."""
    other = run(mixed, recorded=recorded_of(mixed_base), ranks=ranks)
    expect_same(mixed_base, other, f"{ranks} ranks")
    assert all(one.mirrored > 0 for one in other.rounds)
    assert other.modes == mixed_base.modes
    assert other.metrics == mixed_base.metrics


def test_a_byte_move_over_ranks_equals_a_remap_of_one(mixed: Case, mixed_base: Run) -> None:
    other = run(mixed, recorded=recorded_of(mixed_base), ranks=2, **WAYS["byte move, copy"])
    expect_same(mixed_base, other, "byte move, copy, 2 ranks")
    _expect_taken("byte move, copy", mixed_base, other)


def test_the_layers_of_the_recorded_selection_do_not_agree(mixed_base: Run) -> None:
    """Otherwise every way would be a shared remap, and the churn between rounds would be none."""
    for one in mixed_base.rounds:
        rows = {blocks.tobytes() for _, blocks in one.selection.logical_blocks_by_layer.items()}
        assert len(rows) > 1
    first, *_, last = mixed_base.rounds
    assert first.selection.logical_blocks_by_layer != last.selection.logical_blocks_by_layer


def test_every_active_layer_and_sliding_layer_is_compared(mixed: Case, mixed_base: Run) -> None:
    """C2: all layers; a sliding layer is compared over the blocks of its window, which are never selected (D7)."""
    layers = {layer for layer, _ in mixed_base.rounds[-1].blocks}
    assert layers == set(range(len(mixed.model.config.layers)))


@pytest.mark.parametrize("part", [0, 1])
def test_the_comparison_sees_one_byte(mixed_base: Run, part: int) -> None:
    blocks = mixed_base.rounds[-1].blocks
    key = sorted(blocks)[-1]
    spoiled = {**blocks, key: blocks[key].copy()}
    spoiled[key][part, 1, 0, -1] ^= 1
    expected = f"layer {key[0]}, block {key[1]}: {'KV'[part]}, head 1, position 0"
    assert first_difference(blocks, spoiled) == expected
    assert first_difference(blocks, {k: v for k, v in blocks.items() if k != key}) == (
        f"blocks {[key]} stand on one side only"
    )


# ---- an oracle that knows no blocks


class Subset:
    """Rows of a plain cache at chosen positions, then the rows fed here: what a draft must see, without any table."""

    def __init__(self, config: ModelConfig, plain: ContiguousKv, positions: dict[int, Tensor]) -> None:
        self.config = config
        self.rows = {
            layer: (*(rows[:, positions[layer]] for rows in plain.rows(layer)), positions[layer])
            for layer in range(len(config.layers))
        }

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        keys, values, at = self.rows[layer]
        keys, values, at = torch.cat((keys, k), 1), torch.cat((values, v), 1), torch.cat((at, positions))
        self.rows[layer] = keys, values, at
        return attention(q, keys, values, positions, at, self.config.layers[layer].window)


def test_a4_resident_blocks_and_draft_logits_equal_plain_rows_of_the_same_positions(mixed: Case) -> None:
    """A4, C2: the prompt's rows come from a plain forward pass; blocks, tables and transfers have changed no bit."""
    config, size = mixed.model.config, mixed.block_size
    result = run(Case(mixed.model, mixed.prompt, size, rounds=1, steps=0))
    plain = ContiguousKv(config, len(mixed.prompt))
    count = len(mixed.prompt)
    mixed.model.forward(torch.tensor(mixed.prompt), torch.arange(count), plain, logits_for=slice(-1, None))
    (one,) = result.rounds
    for (layer, logical), held in one.blocks.items():
        rows = torch.stack(plain.rows(layer))[:, :, logical * size : min((logical + 1) * size, count)]
        expected = rows.contiguous().view(torch.uint8).numpy()
        assert np.array_equal(held, expected), f"layer {layer}, block {logical}"
    positions = {
        layer: torch.tensor(
            [
                at
                for owner, logical in sorted(one.blocks)
                if owner == layer
                for at in range(logical * size, min((logical + 1) * size, count))
            ]
        )
        for layer in range(len(config.layers))
    }
    subset = Subset(config, plain, positions)
    expected_logits = torch.cat(
        [
            mixed.model.forward(torch.tensor([token]), torch.tensor([count + ahead]), subset)
            for ahead, token in enumerate(mixed.prompt[:4])
        ]
    )
    assert torch.equal(one.logits, expected_logits)


# ---- the real model


@pytest.fixture(scope="module")
def real(smollm2: Bundle) -> Case:
    prompt = smollm2.tokenizer.encode(load_text().body)[:192]
    return Case(smollm2.model, prompt, block_size=8, rounds=2, steps=2)


@pytest.fixture(scope="module")
def real_base(real: Case) -> Run:
    return run(real)


@pytest.mark.parametrize("way", ["remap, copy", "byte move, source-only"])
def test_c1_c2_the_real_model_cannot_tell_the_ways_apart(real: Case, real_base: Run, way: str) -> None:
    """C1, C2: SmolLM2-135M in fp32 on one thread, 30 layers, 3 KV heads."""
    other = run(real, recorded=recorded_of(real_base), **WAYS[way])
    expect_same(real_base, other, way)
    _expect_taken(way, real_base, other)


@pytest.mark.full
def test_c2_the_real_model_in_bf16_cannot_tell_the_ways_apart(smollm2: Bundle) -> None:
    """C2: bytes are compared without a tolerance in bf16 too, where logits alone would hide an exchange of blocks."""
    bundle = load_smollm2("bf16", smollm2.path)
    case = Case(bundle.model, bundle.tokenizer.encode(load_text().body)[:192], block_size=8, rounds=2, steps=2)
    base = run(case)
    for way in ("remap, copy", "byte move, source-only"):
        expect_same(base, run(case, recorded=recorded_of(base), **WAYS[way]), way)


def test_b1_layers_of_the_real_model_never_agree(real_base: Run) -> None:
    """B1: so per-layer remap is what serves it, and a shared remap has to be refused."""
    assert real_base.modes["shared"] == 0
    assert real_base.modes["layer"] == len(real_base.rounds)


SLIDING_FIRST = (LayerShape("sliding", 40), LayerShape("full"), LayerShape("sliding", 72), LayerShape("full"))


def test_c2_two_windows_and_a_block_that_divides_neither() -> None:
    """C2, D7: three groups of layers with blocks of 12 tokens."""
    case = Case(synthetic_model(SEED, synthetic_config("fp32", SLIDING_FIRST)), text_tokens(300), 12, rounds=4, steps=3)
    base = run(case)
    for way in ("remap, copy", "byte move, source-only"):
        expect_same(base, run(case, recorded=recorded_of(base), **WAYS[way]), way)
