"""Parts of the runner by themselves: time, links, made-up KV, and the bounds of what each keeps."""

import random

import anyio
import numpy as np
import pytest

from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.ids import RequestKey
from kvsweep.scenarios.verify.script import content, run, wires
from kvsweep.scenarios.verify.script.content import SyntheticKv, tag_of
from kvsweep.scenarios.verify.script.format import MAX_FAULTS, MAX_STEPS
from kvsweep.scenarios.verify.script.load import parse
from kvsweep.scenarios.verify.script.timeline import Timeline
from kvsweep.scenarios.verify.script.wires import Frame, Wire
from kvsweep.scenarios.verify.script.world import Group, Links, ScenarioWorld


def wire_of(timeline: Timeline, *frames: Frame, links: Links | None = None) -> Wire:
    """A wire on which the n-th frame that is put becomes the n-th of these, then itself."""
    waiting = list(frames)
    links = links or Links()
    return Wire(timeline, links, random.Random(1), lambda data: [waiting.pop(0)] if waiting else [Frame(data)])


# ---- time


def test_timers_act_in_their_turn_and_in_the_order_in_which_they_were_set() -> None:
    timeline, acted = Timeline(), list[str]()
    timeline.after(2, lambda: acted.append("two"))
    timeline.after(1, lambda: acted.append("one"))
    timeline.after(2, lambda: acted.append("two again"))
    timeline.after(0, lambda: acted.append("next"))
    seen = []
    for _ in range(3):
        timeline.tick()
        seen.append(list(acted))
    assert seen == [["next", "one"], ["next", "one", "two", "two again"], ["next", "one", "two", "two again"]]


def test_time_jumps_to_the_turn_before_the_next_timer() -> None:
    timeline, acted = Timeline(), list[int]()
    timeline.after(100, lambda: acted.append(timeline.turn))
    assert timeline.jump()
    assert timeline.turn == 99
    assert not acted
    timeline.tick()
    assert acted == [100]
    assert not timeline.jump(), "nothing is ahead"


def test_what_faults_hold_back_is_let_go_when_they_stop() -> None:
    timeline = Timeline()
    gate = timeline.gate_after(1000)
    timeline.stop_faults()
    timeline.tick()
    assert gate.is_open


# ---- links


@pytest.mark.anyio
async def test_frames_overtake_only_those_that_stand_aside() -> None:
    timeline = Timeline()
    wire = wire_of(timeline, Frame(b"1", behind=2), Frame(b"2"), Frame(b"3"), Frame(b"4"))
    for name in (b"1", b"2", b"3", b"4"):
        await wire.put(name)
    assert [await wire.get() for _ in range(4)] == [b"2", b"3", b"1", b"4"]


@pytest.mark.anyio
async def test_a_frame_arrives_once_its_gate_is_open() -> None:
    timeline = Timeline()
    wire = wire_of(timeline, Frame(b"late", timeline.gate_after(3)), Frame(b"soon"))
    await wire.put(b"late")
    await wire.put(b"soon")
    assert await wire.get() == b"soon"
    for _ in range(3):
        timeline.tick()
    assert await wire.get() == b"late"


@pytest.mark.anyio
async def test_a_full_link_makes_its_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "CAPACITY", 2)
    wire = wire_of(Timeline())
    await wire.put(b"1")
    await wire.put(b"2")
    sent: list[bytes] = []

    async def third() -> None:
        await wire.put(b"3")
        sent.append(b"3")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(third)
        await anyio.wait_all_tasks_blocked()
        assert not sent
        assert await wire.get() == b"1"
    assert sent == [b"3"]


@pytest.mark.anyio
async def test_chance_loses_and_repeats_until_the_faults_stop() -> None:
    timeline = Timeline()
    wire = wire_of(timeline, links=Links(duplicate=0.5, lose=0.4))
    for _ in range(100):
        await wire.put(b"x")
    stormy = len(wire._frames)
    assert 60 < stormy < 140
    assert stormy != 100
    timeline.stop_faults()
    wire._frames.clear()
    for _ in range(100):
        await wire.put(b"x")
    assert len(wire._frames) == 100


# ---- KV


def test_any_wrong_token_layer_head_or_life_shows_in_the_bytes() -> None:
    world = ScenarioWorld(groups=(Group(layers=3),))
    kv = SyntheticKv(world.layout())
    tags = [tag_of(RequestKey(name, epoch)) for name in ("a", "b") for epoch in (1, 2)]
    blocks = [kv.block(tag, layer, logical) for tag in tags for layer in range(3) for logical in range(4)]
    elements = np.stack(blocks)  # [blocks, 2, heads, tokens, head_dim]
    tokens = {part.tobytes() for block in elements for part in np.moveaxis(block, 2, 0)}
    assert len(tokens) == len(blocks) * world.block_size, "a token of one block has K and V that another has"
    heads = {tuple(block[1, head, 0]) for block in elements[:1] for head in range(world.ranks)}
    assert len(heads) == world.ranks


def test_a_model_makes_the_same_kv_whatever_is_asked_first() -> None:
    from kvsweep.scenarios.verify.script.model_kv import ModelKv

    layout = ScenarioWorld(kv="model", groups=(Group(), Group(kind="sliding", layers=1, window=8))).layout()
    one, other = ModelKv(layout, 5), ModelKv(layout, 5)
    last = one.block(7, 2, 40).copy()
    first = one.block(7, 2, 0).copy()
    assert (other.block(7, 2, 0) == first).all()
    assert (other.block(7, 2, 40) == last).all()
    assert (ModelKv(layout, 6).block(7, 2, 0) != first).any()
    assert (one.block(8, 2, 0) != first).any()


# ---- bounds


def test_scripts_have_a_longest_length() -> None:
    for field, limit, item in (
        ("step", MAX_STEPS, '{ do = "wait", turns = 1 }'),
        ("fault", MAX_FAULTS, '{ do = "drop", on = { message = "done" } }'),
    ):
        parse(f'title = "x"\n{field} = [{", ".join([item] * limit)}]')
        with pytest.raises(SettingsError, match=f"Expected `array` of length <= {limit}"):
            parse(f'title = "x"\n{field} = [{", ".join([item] * (limit + 1))}]')


def test_a_verdict_keeps_the_first_of_what_is_broken() -> None:
    text = 'title = "x"\n[[step]]\ndo = "open"\n' + '[[step]]\ndo = "preempt"\nrefused = "x"\n' * 30
    assert len(run.run_script(parse(text)).broken) == run.BROKEN_KEPT


def test_made_up_blocks_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "BLOCKS_KEPT", 4)
    kv = SyntheticKv(ScenarioWorld().layout())
    for logical in range(10):
        kv.block(1, 0, logical)
    assert len(kv._blocks) == 4
