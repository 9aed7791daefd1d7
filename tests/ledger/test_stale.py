"""CPU blocks after a producer restart (F2): invalid until registered again, held all the while, back if replaced."""

from typing import Any

import numpy as np
import pytest
from tests.ledger.relation import freed_sources
from tests.ledger.worlds import B, World, ids_of, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, POOL, int32_bytes
from kvsweep.ledger.sources import blocks_of, leading, merged, with_blocks, without


def restarted(epoch: int = 6) -> World:
    """a knows logical blocks 0 to 3 in CPU blocks 0 to 3, and the producer that named them is gone."""
    w = World()
    w.emit(e.ProducerRestarted, POOL, process_epoch=epoch)
    return w


def table(w: World) -> tuple[list[int], list[int]]:
    """(valid, stale) CPU blocks by logical block."""
    request = w.of()
    return ids_of(request.source), ids_of(request.stale)


def again(logical: list[int], source: list[int]) -> dict[str, Any]:
    return {"logical": int32_bytes(logical), "source": int32_bytes(source)}


def freed(w: World, fact: type[e.Event], **fields: Any) -> list[int]:
    before = w.state.ownership
    w.emit(fact, **fields)
    return freed_sources(before, w.state.ownership)


def test_a_restart_makes_every_source_stale_and_frees_none() -> None:
    w = restarted()
    assert table(w) == ([], [0, 1, 2, 3])
    assert w.sources_held() == [0, 1, 2, 3]
    assert [w.of().source_of(logical) for logical in range(4)] == [HOLE] * 4
    w.lawful()


def test_a_block_is_registered_again_in_its_own_place_only() -> None:
    w = restarted()
    w.refuse("CPU block 1 was not that of logical block 0", e.SourcesRegistered, **again([0], [1]))
    w.refuse("CPU block 3 was not that of logical block 7", e.SourcesRegistered, **again([7], [3]))
    assert freed(w, e.SourcesRegistered, **again([0, 2], [0, 2])) == []
    assert table(w) == ([0, HOLE, 2], [HOLE, 1, HOLE, 3])
    w.refuse("logical block 2 has a valid CPU block already", e.SourcesRegistered, **again([2], [8]))
    w.lawful()


def test_another_block_in_its_place_gives_the_stale_one_back() -> None:
    w = restarted()
    assert freed(w, e.SourcesRegistered, **again([1], [9])) == [1]
    assert table(w) == ([HOLE, 9], [0, HOLE, 2, 3])
    w.open(B, blocks=0)
    w.register([0], [1], B)
    w.lawful()


def test_nobody_else_registers_a_stale_block() -> None:
    w = restarted()
    w.open(B, blocks=0)
    w.refuse("CPU block 2 is held for a", e.SourcesRegistered, B, **again([2], [2]))


def test_a_lease_outlives_the_stale_block_that_it_reads() -> None:
    w = World()
    op = w.upload({0: [0], 1: [2]}, {0: [5], 1: [5]}, [5])
    w.emit(e.ProducerRestarted, POOL, process_epoch=6)
    w.emit(e.UploadAborted, operation=op, reason="the producer restarted")
    assert freed(w, e.SourcesRegistered, **again([0, 1], [8, 9])) == [1], "0 may still be read"
    w.settle(op, 0)
    assert freed(w, e.TransferSettled, operation=op, rank=1, process_epoch=11, outcome="cancelled") == [0]
    assert w.sources_held() == [2, 3, 8, 9]
    w.lawful()


def test_two_restarts_keep_what_the_second_producer_named_and_what_it_did_not() -> None:
    w = restarted()
    w.emit(e.SourcesRegistered, **again([1, 6], [9, 10]))
    w.emit(e.ProducerRestarted, POOL, process_epoch=7)
    assert table(w) == ([], [0, 9, 2, 3, HOLE, HOLE, 10])
    assert w.sources_held() == [0, 2, 3, 9, 10]
    w.lawful()


def test_g4_a_stored_block_replaces_the_stale_one() -> None:
    w = restarted()
    w.tail(3, [0])
    op = w.store([3], [7])
    w.stored(op)
    assert freed(w, e.StoreCompleted, operation=op) == [3]
    assert table(w) == ([HOLE, HOLE, HOLE, 7], [0, 1, 2, HOLE])
    w.lawful()


def test_a_stale_block_is_no_source_of_an_upload() -> None:
    w = restarted()
    w.register([3], [3])
    w.plan({0: [2], 1: []})
    lease = w.lease({0: [5], 1: []}, [5], source=rows({0: [2], 1: []}))
    w.refuse("a source is not the request's own valid CPU block", e.BlocksLeased, **lease)


def test_finish_gives_stale_blocks_back_too() -> None:
    w = restarted()
    w.register([0], [8])
    assert freed(w, e.RequestFinished) == [1, 2, 3, 8]
    assert table(w) == ([], [])
    w.lawful()


def i32(*values: int) -> Any:
    return np.asarray(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("under", "over", "expected"),
    [
        ([], [], []),
        ([1, 2], [], [1, 2]),
        ([], [1, HOLE, 2], [1, HOLE, 2]),
        ([5, 6, 7], [HOLE, 1], [5, 1, 7]),
        ([5], [HOLE, HOLE, 9], [5, HOLE, 9]),
    ],
)
def test_tables_merge_entry_by_entry(under: list[int], over: list[int], expected: list[int]) -> None:
    assert ids_of(merged(int32_bytes(under), int32_bytes(over))) == expected


def test_tables_grow_with_holes_and_lose_entries_without_moving_others() -> None:
    grown = with_blocks(b"", i32(3, 1), i32(30, 10))
    assert ids_of(grown) == [HOLE, 10, HOLE, 30]
    assert ids_of(without(grown, i32(1, 9))) == [HOLE, HOLE, HOLE, 30]
    assert ids_of(blocks_of(grown, int32_bytes([HOLE, 4]))) == [10, 30, 4]
    assert [leading(int32_bytes(t)) for t in ([], [HOLE, 1], [5, 6], [5, 6, HOLE, 7])] == [0, 0, 2, 2]
