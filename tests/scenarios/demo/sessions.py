"""What scenario tests share: sessions over everything in one process, and what a session has on its device."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvsweep.ledger.ids import int32_view
from kvsweep.ledger.messages import BlockSelection, OpenTail
from kvsweep.ledger.state import RequestState
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.settings import Settings
from kvsweep.scenarios.demo.fleet import YIELDS_PER_STEP
from kvsweep.scenarios.demo.loop import Scorer, Session
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.paged import DraftKv, StepReads
from kvsweep.scenarios.demo.sampling import Sampler
from kvsweep.scenarios.demo.stack import Stack, layout_of, run_config_of
from kvsweep.scenarios.demo.text import load_text

SEED = 20260916
UInt8 = npt.NDArray[np.uint8]
Selector = Callable[[Session], BlockSelection]


def settings(**tables: Any) -> Settings:
    """Settings with a log in memory; no deadline that a slow machine could meet."""
    return Settings.of(**{"log": {"url": "memory:"}, "transfer": {"deadline_s": 600.0}, "seed": SEED, **tables})


def text_tokens(count: int) -> list[int]:
    """Ids for the synthetic model: bytes of the shipped text."""
    return list(load_text().body.encode()[:count])


@asynccontextmanager
async def opened(
    model: Model,
    prompt: list[int],
    settings: Settings,
    *,
    block_size: int,
    scorer: Scorer = "attention",
    every: int = 16,
    temperature: float = 0.0,
    selector: Selector | None = None,
    room: int = 256,
    ranks: int = 1,
) -> AsyncIterator[Session]:
    """A session that has not run its prefill yet; at the end everything it held has to come back.

    room  tokens that it may emit
    """
    layout = layout_of(model.config, model_hash="test", block_size=block_size)
    driver = Driver.open(settings, run_config_of(layout, tokens=len(prompt) + room, settings=settings, ranks=ranks))
    async with Stack(driver) as stack:
        kv = stack.kv
        session = Session(
            stack,
            model,
            Sampler(temperature=temperature, seed=SEED, request_id="test/0"),
            request_id="test/0",
            prompt=prompt,
            scorer=scorer,
            every=every,
            selector=selector,
        )
        yield session
        kv.finish(session.key)
        await kv.settled()
    driver.check_laws()
    run = driver.state.pool.run
    assert run is not None
    assert driver.pools.device.free == run.device_blocks
    assert driver.pools.cpu.free == (run.cpu_full_blocks, run.cpu_total_blocks - run.cpu_full_blocks)


async def generate(session: Session, tokens: int, *, rounds: int | None, on_step: Callable[[int], None]) -> None:
    """Steps until `tokens` are emitted or `rounds` are done, one round at a time beside them; then the round's end."""
    async with anyio.create_task_group() as beside:
        running: list[anyio.Event] = []

        async def one_round(done: anyio.Event) -> None:
            try:
                await session.round()
            finally:
                done.set()

        while len(session.emitted) < tokens and (rounds is None or session.progress.rounds < rounds):
            if session.due:
                for event in running:
                    await event.wait()
                session.began_round()
                running = [anyio.Event()]
                beside.start_soon(one_round, running[0])
            before = len(session.emitted)
            session.step()
            session.measure()
            on_step(len(session.emitted) - before)
            for _ in range(YIELDS_PER_STEP):
                await anyio.lowlevel.checkpoint()
    del session.tokens[session.prompt_tokens + tokens :]


def request_of(session: Session) -> RequestState:
    found = session.kv.driver.state.request(session.key)
    assert found is not None
    return found


def reads_of(session: Session) -> tuple[int, StepReads]:
    """An open step and what it was handed."""
    number, handed = session.kv.begin_step([session.key])
    return number, StepReads(session.kv.driver.state, session.key, handed[session.key], session.stack.nodes)


def area(session: Session, layer: int, physical: int) -> UInt8:
    """uint8[2 (K, V), kv_heads, block_size, bytes of a head]: what the ranks hold there now, natural order."""
    parts = []
    for node in session.stack.nodes:
        raw: UInt8 = node.device.read(layer, np.asarray([physical], dtype=np.int32))[0]
        parts.append(raw.reshape((2, node.layout.layers[layer].kv_heads, session.layout.block_size, -1)))
    return np.concatenate(parts, axis=1)


def device_bytes(session: Session) -> dict[tuple[int, int], UInt8]:
    """(layer, logical block) -> [2, kv_heads, valid positions, bytes of a head] of all that a draft may read."""
    number, reads = reads_of(session)
    size, confirmed = session.layout.block_size, len(session.tokens) - 1
    found = {}
    assert all(rows == reads.resident[0] for rows in reads.resident), "ranks show other tables"
    for layer in range(len(session.layout.layers)):
        for logical, physical in sorted({**reads.tail_of(layer), **reads.resident[0].get(layer, {})}.items()):
            valid = min(size, confirmed - logical * size)
            if valid > 0:
                found[layer, logical] = area(session, layer, physical)[:, :, :valid]
    session.kv.end_step(number)
    return found


def cpu_bytes(session: Session, layer: int, logical: int) -> UInt8 | None:
    """The producer's bytes of a logical block in the same shape, or None where it holds none."""
    source = request_of(session).source_of(logical)
    if source < 0:
        return None
    one = session.layout.layers[layer]
    raw: UInt8 = session.stack.producer.read(layer, np.asarray([source], dtype=np.int32))[0]
    return raw.reshape((2, one.kv_heads, session.layout.block_size, -1))


def first_difference(ours: dict[tuple[int, int], UInt8], theirs: dict[tuple[int, int], UInt8]) -> str | None:
    """Where two sets of blocks first differ: a block that one lacks, or (layer, block, K or V, head, position)."""
    if ours.keys() != theirs.keys():
        return f"blocks {sorted(ours.keys() ^ theirs.keys())} stand on one side only"
    for key in sorted(ours):
        differs = np.argwhere((ours[key] != theirs[key]).any(axis=-1))
        if differs.size:
            part, head, position = differs[0].tolist()
            return f"layer {key[0]}, block {key[1]}: {'KV'[part]}, head {head}, position {position}"
    return None


def draft_logits(session: Session, fed: list[int]) -> Tensor:
    """float32[len(fed), vocab]: the draft's, fed these tokens one after the other after the confirmed ones.

    The rows that it writes lie past the confirmed ones; the next step writes them again.
    """
    start, size = len(session.tokens) - 1, session.layout.block_size
    session.kv.handle(OpenTail(request=session.key, until=-(-(start + len(fed)) // size)))
    number, reads = reads_of(session)
    draft = DraftKv(session.model.config, reads)
    rows = [
        session.model.forward(torch.tensor([token]), torch.tensor([start + ahead]), draft)
        for ahead, token in enumerate(fed)
    ]
    session.kv.end_step(number)
    return torch.cat(rows)


def selected(session: Session, selection: BlockSelection) -> None:
    """Raise AssertionError unless every block of the selection is resident in the current view of its layer."""
    view = request_of(session).view
    assert view is not None
    for layer, blocks in selection.logical_blocks_by_layer.items():
        missing = sorted(set(blocks.tolist()) - set(view.logical.row(layer).tolist()))
        assert not missing, f"layer {layer}: {missing} were selected and are not resident"


def mirrored(session: Session) -> int:
    """Logical blocks that the CPU holds."""
    return int((int32_view(request_of(session).source) >= 0).sum())
