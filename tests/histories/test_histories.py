"""Ledgers in which a fault was found, each as short as it can be: replayed, and asked again what was answered wrongly.

A file has a title on its first line and one event a line after it, as JSON with its bytes in base64.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.rig import PRODUCER, make_settings

from kvsweep.ledger import events as e
from kvsweep.ledger import fold, laws
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.messages import (
    Acknowledged,
    EvictPrefix,
    OpenRequest,
    ProcessStarted,
    PublishKeepMap,
    RegisterSources,
    Reserve,
)
from kvsweep.ledger.state import EMPTY
from kvsweep.runtime.core.core import Core
from kvsweep.scenarios.verify.checkers.ownership import Ownership

FOLDER = Path(__file__).resolve().parent
HISTORIES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
A, B = RequestKey("a", 1), RequestKey("b", 1)


def events_of(name: str) -> list[Event]:
    title, *lines = (FOLDER / f"{name}.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(title)["title"]
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(e.AnyEvent)
    return [decoder.decode(line) for line in lines]


def core_of(name: str) -> Core:
    """A core that has lived this history."""
    return Core(make_settings(), state=fold.apply_all(EMPTY, events_of(name)))


@pytest.mark.parametrize("name", HISTORIES)
def test_every_history_folds_lawfully_and_the_independent_count_agrees(name: str) -> None:
    state, oracle = EMPTY, Ownership()
    for event in events_of(name):
        state = fold.apply(state, event)
        oracle.see(event)
        assert laws.check(state) == []
    assert oracle.found == []
    assert len(events_of(name)) < 40, "as short as it can be"


def test_every_history_has_a_test_here() -> None:
    assert HISTORIES == ["sources_of_another", "three_shared_blocks", "voided_keep_map"]


def test_i_a_voided_keep_map_is_said_to_the_next_producer_all_the_same() -> None:
    """The lane waits for its acknowledgement whether or not the map still means anything; nobody else would say it."""
    core = core_of("voided_keep_map")
    request = core.state.request(A)
    assert request is not None
    assert (request.upload.phase, request.keep_map) == ("PUBLISHED", None)
    turn = core.handle(ProcessStarted(process_epoch=PRODUCER + 1))
    core.adopt(turn)
    (said,) = [effect for effect in turn.effects if isinstance(effect, PublishKeepMap)]
    core.adopt(core.handle(Acknowledged(operation=said.operation, process_epoch=PRODUCER + 1)))
    after = core.state.request(A)
    assert after is not None
    assert after.upload.phase == "IDLE"


@pytest.mark.parametrize(
    ("logical", "source", "reason"),
    [
        ([0], [1], "source: CPU block 1 is held for a"),
        ([0], [32], "source: expected block ids in [0, 32), the CPU pool's size, got 32"),
        ([0, 1], [9, 9], "source: expected each block once, got [9, 9]"),
    ],
)
def test_i_wrong_sources_are_refused_by_name_and_are_no_lack_of_space(
    logical: list[int], source: list[int], reason: str
) -> None:
    """They were answered as `no_space`: a caller would have tried again for ever."""
    core = core_of("sources_of_another")
    turn = core.handle(RegisterSources(request=B, logical=int32_bytes(logical), source=int32_bytes(source)))
    assert not any(isinstance(effect, Reserve) for effect in turn.effects)
    assert turn.refusal is not None
    assert turn.refusal.reason == reason
    assert [(type(event), event.request) for event in turn.events] == [(e.CommandRefused, B)]


def test_f5_an_open_id_is_refused_in_its_own_stream() -> None:
    """The refusal named the pool, so that nothing led from it to the request."""
    turn = core_of("sources_of_another").handle(OpenRequest(request_id="a"))
    assert [(type(event), event.request) for event in turn.events] == [(e.CommandRefused, A)]


def test_b6_a_negative_count_evicts_nothing() -> None:
    """It was taken for a count from the other end: all but the newest shared block were given up."""
    core = core_of("three_shared_blocks")
    turn = core.handle(EvictPrefix(blocks=-1))
    assert [type(event) for event in turn.events] == [e.CommandRefused]
    core.adopt(turn)
    assert [prefix.logical for prefix in core.state.pool.prefixes] == [0, 1, 2]
