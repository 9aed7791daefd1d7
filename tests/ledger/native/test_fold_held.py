"""A state whose holders do not fit what is there is left to the reference: the compiled fold drops them unseen."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace
from tests.ledger.native.recorded import recorded
from tests.ledger.worlds import DEVICE_BLOCKS, B, K, World

from kvsweep.ledger import compiled
from kvsweep.ledger import events as e
from kvsweep.ledger.fold import apply
from kvsweep.ledger.ids import int32_bytes
from kvsweep.ledger.state import EMPTY, Prefix
from kvsweep.ledger.store.codec import encode
from kvsweep.ledger.store.snapshot import state_bytes, state_of

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled form is not built here")

fold: Any = compiled.fold
OTHER: Final = 99
"""A number that nothing has in the recorded run."""


class Stored:
    """A state as it is kept, to be changed."""

    def __init__(self, body: bytes) -> None:
        self.parts: list[Any] = msgspec.msgpack.decode(body)
        self.pool, requests, held, *_ = self.parts
        self.requests = [request for _, request in requests]
        self.held = [holders for _, holders in held]

    def opened(self) -> Iterator[Any]:
        """Lanes in which something is held for a table that comes."""
        held = ("LEASED", "MOVING", "MOVED", "APPLYING", "APPLIED")
        for request in self.requests:
            yield from (request[lane] for lane in ("upload", "retain") if request[lane]["phase"] in held)

    def loads(self) -> bool:
        body = msgspec.msgpack.encode(self.parts)
        state_of(body)  # the reference takes it, and finds what is wrong when it has to
        return fold.machine_of(body) is not None


def other_block(ids: bytes) -> bytes:
    """The first is another one, which nobody has."""
    return int32_bytes([DEVICE_BLOCKS - 1]) + ids[4:]


def renamed(kind: str) -> Callable[[Stored], Iterator[Any]]:
    def wrong(stored: Stored) -> Iterator[Any]:
        for holders in stored.held:
            for holder, holding in holders:
                if holder[0] == kind and any(holding[0][2:] + holding[1:]):
                    holder[1] += OTHER
                    yield holder

    return wrong


def doubled(stored: Stored) -> Iterator[Any]:
    for holders in stored.held:
        holders.append(holders[0])
        yield holders


def of_requests(field: str, change: Callable[[Any], None]) -> Callable[[Stored], Iterator[Any]]:
    """The first item of a field of every request that has any is changed."""

    def wrong(stored: Stored) -> Iterator[Any]:
        for request in stored.requests:
            if request[field]:
                change(request[field])
                yield request

    return wrong


def table_of_another_block(stored: Stored) -> Iterator[Any]:
    for lane in stored.opened():
        table = lane["open"]["table"]
        if table[2]:
            table[2] = other_block(table[2])
            yield lane


def of_another_lane(stored: Stored) -> Iterator[Any]:
    for lane in stored.opened():
        lane["open"]["lane"] = "store"
        yield lane


def without_operation(stored: Stored) -> Iterator[Any]:
    for lane in stored.opened():
        lane["open"] = None
        yield lane


def number_to_come(stored: Stored) -> Iterator[Any]:
    for lane in stored.opened():
        stored.pool["next_operation_id"] = lane["open"]["operation"][1]
        yield lane


def generation_of_the_view(stored: Stored) -> Iterator[Any]:
    for request in stored.requests:
        for lane in (request["upload"], request["retain"]):
            if lane["phase"] in ("PLANNED", "LEASED", "MOVING") and request["current"]:
                lane["open"]["generation"] = request["current"]
                yield lane


def counted_again(field: str, items: str) -> Callable[[Stored], Iterator[Any]]:
    """What comes next has the number of what is there."""

    def wrong(stored: Stored) -> Iterator[Any]:
        for owner in (stored.pool, *stored.requests):
            if owner.get(items):
                owner[field] = 1
                yield owner

    return wrong


def move_tail(tail: Any) -> None:
    tail[0]["physical"] = [DEVICE_BLOCKS - 1 if block != -1 else block for block in tail[0]["physical"]]


WRONG: Final[dict[str, Callable[[Stored], Iterator[Any]]]] = {
    **{f"renamed {kind}": renamed(kind) for kind in ("dst", "fence", "owner", "prefix", "src", "tail", "view")},
    "doubled holder": doubled,
    "tail block of another place": of_requests("tail", move_tail),
    "tail block twice": of_requests("tail", lambda tail: tail.append(tail[0])),
    "view in another row": of_requests("views", lambda views: views[0].update(row=OTHER)),
    "view twice": of_requests("views", lambda views: views.append(views[-1])),
    "fence twice": of_requests("fences", lambda fences: fences.append(fences[0])),
    "settling twice": of_requests("settling", lambda settling: settling.append(settling[0])),
    "current generation without a view": lambda stored: iter(
        [request.update(current=OTHER) for request in stored.requests]
    ),
    "table of another block": table_of_another_block,
    "operation of another lane": of_another_lane,
    "phase without an operation": without_operation,
    "operation with the next number": number_to_come,
    "operation of the view's generation": generation_of_the_view,
    "generations begin again": counted_again("next_generation", "views"),
    "fences begin again": counted_again("next_fence", "fences"),
    "prefixes begin again": counted_again("next_prefix", "prefixes"),
}


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    state, made = EMPTY, []
    for event in recorded():
        state = apply(state, event)
        made.append(state_bytes(state))
    return made[1:]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_left_to_the_reference(wrong: Callable[[Stored], Iterator[Any]], bodies: Any) -> None:
    seen = 0
    for body in bodies:
        assert Stored(body).loads()
        for at in range(len(list(wrong(Stored(body))))):
            stored = Stored(body)
            changes = wrong(stored)
            for _ in range(at + 1):
                next(changes)
            assert not stored.loads()
            seen += 1
    assert seen


def test_a_prefix_that_nobody_shares_is_not_attached() -> None:
    w = World()
    w.open(B, row_count=2, first_source=6, blocks=2)
    prefix = Prefix(number=1, key="tokens", logical=4, physical=(DEVICE_BLOCKS - 1,), source=K - 1)
    w.state = replace(w.state, pool=replace(w.state.pool, prefixes=(prefix,), next_prefix=2))
    machine = fold.machine_of(state_bytes(w.state))
    assert not machine.apply(encode(w.event(e.PrefixAttached, B, {"number": 1, "logical": 4})))
    assert machine.state_bytes() == state_bytes(w.state)
