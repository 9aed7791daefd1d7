"""Shared prefix blocks through the core: published once, attached in order, evicted oldest first, freed last."""

import pytest
from tests.runtime.rig import CoreRig, rows

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import RequestKey, int32_view
from kvsweep.ledger.messages import (
    AttachPrefix,
    EvictPrefix,
    Finish,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishPrefix,
    Release,
    SealTail,
)

NAMES = ("p0", "p1", "p2")


@pytest.fixture
def writer(rig: CoreRig) -> RequestKey:
    """A request with three clean tail blocks."""
    key = rig.open("a", blocks=0)
    rig.clean_tail(key, 3)
    return key


def publish(rig: CoreRig, key: RequestKey, *names: str) -> None:
    rig.send(PublishPrefix(request=key, keys=tuple(enumerate(names))))


def reader(rig: CoreRig, name: str, *names: str) -> RequestKey:
    key = rig.open(name, blocks=0)
    assert rig.send(AttachPrefix(request=key, keys=names)).outcome == "accepted"
    return key


def attached(rig: CoreRig, key: RequestKey) -> list[int]:
    return [block.logical for block in rig.request(key).tail]


def prefixes(rig: CoreRig) -> list[str]:
    return [prefix.key for prefix in rig.state.pool.prefixes]


def test_a_shared_block_is_one_block_for_all_that_read_it(rig: CoreRig, writer: RequestKey) -> None:
    free, cpu = rig.free(), rig.pools.cpu.free
    publish(rig, writer, *NAMES)
    readers = [reader(rig, name, *NAMES) for name in ("b", "c")]
    assert (rig.free(), rig.pools.cpu.free) == (free, cpu), "references, no copies"
    for key in readers:
        assert attached(rig, key) == [0, 1, 2]
        assert [block.physical for block in rig.request(key).tail] == [
            block.physical for block in rig.request(writer).tail
        ]
        assert int32_view(rig.request(key).source).tolist() == int32_view(rig.request(writer).source).tolist()
    rig.lawful()


def test_an_attach_ends_at_the_first_name_that_is_not_there(rig: CoreRig, writer: RequestKey) -> None:
    publish(rig, writer, *NAMES)
    assert attached(rig, reader(rig, "b", "p0", "other", "p2")) == [0]
    assert attached(rig, reader(rig, "c", "other", "p1")) == []
    assert attached(rig, reader(rig, "d", "p1", "p2")) == [], "a block at another place is another block"
    rig.send(EvictPrefix(blocks=1))
    assert prefixes(rig) == ["p1", "p2"], "the oldest goes first"
    assert attached(rig, reader(rig, "e", *NAMES)) == []
    rig.lawful()


def test_what_is_not_whole_and_clean_or_is_known_is_passed_over(rig: CoreRig, writer: RequestKey) -> None:
    rig.send(OpenTail(request=writer, until=5))
    publish(rig, writer, "p0", "p0", "p2", "p3")
    assert prefixes(rig) == ["p0", "p2"], "block 1 under a known name, block 3 still open"
    follower = reader(rig, "b", "p0")
    publish(rig, follower, "again")
    assert prefixes(rig) == ["p0", "p2"], "a block that is shared already is not published once more"
    rig.lawful()


def test_b6_a_shared_block_goes_back_with_its_last_reference_and_not_before(rig: CoreRig, writer: RequestKey) -> None:
    publish(rig, writer, "p0")
    follower = reader(rig, "b", "p0")
    free = rig.free()
    rig.send(Finish(request=writer))
    assert rig.free() == free + 2, "two blocks were its own"
    rig.send(EvictPrefix(blocks=9))
    assert (rig.free(), prefixes(rig)) == (free + 2, [])
    rig.lawful()
    rig.send(Finish(request=follower))
    assert rig.free() == 16
    assert rig.pools.cpu.free == (32, 8)
    released = [int32_view(effect.device[0]).tolist() for effect in rig.effects_of(Release)]
    assert sorted(block for blocks in released for block in blocks) == [0, 1, 2], "each once"
    rig.lawful()


def test_g4_a_reader_uploads_and_adopts_beside_shared_blocks_and_never_writes_them(
    rig: CoreRig, writer: RequestKey
) -> None:
    publish(rig, writer, *NAMES)
    follower = reader(rig, "b", *NAMES)
    shared = {block.physical[0] for block in rig.request(follower).tail}
    rig.send(OpenTail(request=follower, until=4))
    operation = rig.started(rig.send(SealTail(request=follower, confirmed_tokens=16)))
    rig.all_done(operation)
    published = rig.started(rig.select(follower, {0: [0, 3], 1: [1, 3]}, whole=4))
    rig.acknowledge(published)  # all of it stands clean in the tail: nothing to upload
    rig.retain(follower, {0: [], 1: []}, adopt={0: [0, 3], 1: [1, 3]})
    view = rig.view(follower)
    assert view.logical.as_lists() == {0: [0, 3], 1: [1, 3]}
    assert view.physical.row(0)[0] in shared, "read where it lies"
    rig.upload(follower, {0: [0, 2, 3], 1: [1, 2, 3]}, whole=4)
    assert not shared & set(rig.last(e.BlocksLeased).destination.ids.tolist()), "a shared block is no destination"
    rig.lawful()


@pytest.mark.parametrize(
    "message",
    [
        ProcessLost(rank=0, process_epoch=10),
        ProcessStarted(rank=0, process_epoch=12),
        ProcessStarted(process_epoch=6),
    ],
)
def test_i_a_process_that_ends_takes_the_cache_with_it(
    rig: CoreRig, writer: RequestKey, message: ProcessStarted
) -> None:
    publish(rig, writer, *NAMES)
    follower = reader(rig, "b", "p0")
    rig.send(message)
    assert prefixes(rig) == []
    assert attached(rig, reader(rig, "c", *NAMES)) == [], "found by nobody any more"
    for key in (writer, follower):
        rig.send(Finish(request=key))
    rig.send(Finish(request=rig.state.requests["c"].key))
    assert rig.free() == 16
    assert rig.pools.cpu.free == (32, 8)
    rig.lawful()


def test_i_after_a_producer_restart_every_reader_names_a_shared_cpu_block_again(
    rig: CoreRig, writer: RequestKey
) -> None:
    """The block is held for both: each may name it, since it is each one's own. A third request may not."""
    publish(rig, writer, "p0")
    follower = reader(rig, "b", "p0")
    block = rig.request(writer).source_of(0)
    rig.send(ProcessStarted(process_epoch=6))
    other = rig.open("c", blocks=0)
    refused = rig.register(other, [0], [block])
    assert refused.refusal is not None
    assert refused.refusal.reason == f"source: CPU block {block} is held for a"
    for key in (writer, follower):
        assert rig.register(key, [0], [block]).outcome == "accepted"
        assert rig.request(key).source_of(0) == block
    rig.lawful()


def test_f4_a_preempted_reader_leaves_the_device_and_keeps_its_cpu_blocks(rig: CoreRig, writer: RequestKey) -> None:
    publish(rig, writer, "p0")
    follower = reader(rig, "b", "p0")
    rig.send(Preempt(request=follower))
    assert attached(rig, follower) == []
    assert rig.request(follower).source_of(0) == rig.request(writer).source_of(0) >= 0
    assert rig.start_retain(follower, rows({0: [], 1: []})).outcome == "refused"
    rig.lawful()
