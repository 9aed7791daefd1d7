"""The handshake: before anything is sent, each side shows what it holds; a refusal names every difference."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.runtime.rig import PRODUCER, RANKS, make_layout, make_settings

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import HandshakeError
from kvsweep.ledger.ids import POOL
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.store.memory import MemoryLog
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.transports.handshake import MUST_BE_EQUAL, Capabilities, capabilities

LAYOUT = make_layout(2)
WORLD = RunConfig(
    layout=LAYOUT, ranks=RANKS, producer_epoch=PRODUCER, device_blocks=(16,), cpu_full_blocks=32, cpu_total_blocks=40
)
PARTS: dict[str, Any] = {"model_hash": "toy", "dtype": "float32", "block_size": 4, "layers": LAYOUT.layers}
SPLIT = Layout.of(**{**PARTS, "layers": (LAYOUT.layers[0], replace(LAYOUT.layers[1], group=1))})
OTHER = {
    "protocol": 2,
    "selection_unit": "token",
    "block_size": 16,
    "dtype": "bfloat16",
    "layout_hash": "another",
    "keep_map_version": 7,
    "tp_size": 4,
}


def side(role: str, layout: Layout = LAYOUT, **fields: Any) -> Capabilities:
    made = capabilities(
        layout,
        role=role,
        selection_unit="block",
        source_kinds=("source_only", "copy"),
        tp_size=2,
        process_epoch=PRODUCER,
        full_blocks=32,
        total_blocks=40,
    )
    return replace(made, **fields)


def agreed(producer: Capabilities, *ranks: Capabilities) -> tuple[dict[str, tuple[object, object]], list[e.Event]]:
    """What the error lists (nothing where they agree), and what was recorded after the configuration."""
    log = MemoryLog()
    driver = Driver.open(make_settings(), WORLD, log=log)
    found: dict[str, tuple[object, object]] = {}
    said = ""
    try:
        driver.agree(producer, ranks)
    except HandshakeError as error:
        found, said = error.differences, str(error)
    for field, (ours, theirs) in found.items():
        assert f"{field}: ours {ours!r}, theirs {theirs!r}" in said
    return found, [record.event for record in log.read()][1:]


def test_d4_equal_sides_agree_and_each_rank_is_recorded_with_what_it_showed() -> None:
    ranks = [side("rank", process_epoch=epoch) for _, epoch in RANKS]
    found, events = agreed(side("producer"), *ranks)
    assert found == {}
    assert [type(event) for event in events] == [e.HandshakeAgreed] * 2
    for rank, event in zip(ranks, events, strict=True):
        assert isinstance(event, e.HandshakeAgreed)
        assert event.request == POOL
        assert msgspec.json.decode(event.theirs, type=Capabilities) == rank
    assert [event.peer for event in events if isinstance(event, e.HandshakeAgreed)] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("field", MUST_BE_EQUAL)
def test_d4_each_field_that_differs_is_refused_with_both_values(field: str) -> None:
    theirs = side("rank", **{field: OTHER[field]})
    found, events = agreed(side("producer"), theirs)
    assert found == {field: (getattr(side("producer"), field), OTHER[field])}
    (event,) = events
    assert isinstance(event, e.HandshakeRefused)
    (difference,) = event.differences
    expected = (field, str(getattr(side("producer"), field)), str(OTHER[field]))
    assert (difference.field, difference.expected, difference.got) == expected


def test_d4_a_refusal_names_every_difference_at_once_and_the_rank() -> None:
    """The first rank agrees; the second differs in all of it, and nothing is asked of a third."""
    found, events = agreed(side("producer"), side("rank"), side("rank", **OTHER), side("rank", protocol=3))
    assert list(found) == list(MUST_BE_EQUAL)
    assert [type(event) for event in events] == [e.HandshakeAgreed, e.HandshakeRefused]
    refused = events[-1]
    assert isinstance(refused, e.HandshakeRefused)
    assert refused.peer == "rank 1"
    assert {one.field: one.got for one in refused.differences} == {name: str(value) for name, value in OTHER.items()}


@pytest.mark.parametrize(
    "other",
    [make_layout(3), make_layout(2, sliding=1), Layout.of(**{**PARTS, "model_hash": "b"}), SPLIT],
    ids=["one layer more", "a sliding layer", "another model", "layers in groups of their own"],
)
def test_d4_any_difference_of_the_layout_is_refused(other: Layout) -> None:
    found, _ = agreed(side("producer"), side("rank", other))
    assert found == {"layout_hash": (LAYOUT.layout_hash, other.layout_hash)}


def test_d5_a_side_that_needs_copies_where_there_is_no_room_for_them_is_refused() -> None:
    """K = N: nothing to copy into, and nothing falls back by itself."""
    producer = side("producer", source_kinds=("copy",), total_blocks=32)
    found, _ = agreed(producer, side("rank", source_kinds=("copy",)))
    assert found == {"copy destinations": ("none: K = N = 32", "needed: source_only is not supported")}
    assert agreed(replace(producer, total_blocks=40), side("rank", source_kinds=("copy",)))[0] == {}


def test_d9_an_offer_that_the_other_side_cannot_read_is_refused_before_anything_is_sent() -> None:
    found, events = agreed(side("producer"), side("rank", source_kinds=("copy",)))
    assert found == {"source_kinds": (("source_only", "copy"), ("copy",))}
    assert isinstance(events[-1], e.HandshakeRefused)
    assert agreed(side("producer", source_kinds=("source_only",)), side("rank"))[0] == {}, "it can read more"


def test_d4_process_epochs_and_sizes_are_recorded_and_need_not_be_equal() -> None:
    found, _ = agreed(side("producer"), side("rank", process_epoch=99, full_blocks=0, total_blocks=0, batch_limit=8))
    assert found == {}
