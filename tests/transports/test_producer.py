"""The producer: gathers copies, keeps the last keep map, acknowledges, hands out keys in natural order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.errors import Busy, LayoutError
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.messages import Acknowledge, Acknowledged, Gather, PackTokens, PublishKeepMap, Release
from kvsweep.transports.producer import HostProducer

EPOCH = 3
Ids = dict[int, list[int]]


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def operation(number: int, request: str = "a-b-c") -> Operation:
    return Operation(request=RequestKey(request, 1), operation_id=number, pool_generation=0, map_revision=0)


def gather(number: int, source: Ids, destination: Ids) -> Gather:
    return Gather(operation=operation(number), source=Rows.of(source), destination=Rows.of(destination))


def publish(number: int, revision: int, keep: Ids, request: str = "a-b-c") -> PublishKeepMap:
    return PublishKeepMap(operation=operation(number, request), selection_revision=revision, keep=Rows.of(keep))


@pytest.fixture
def producer(world: Any) -> HostProducer:
    made = HostProducer(world.layout, full_blocks=6, total_blocks=10, process_epoch=EPOCH)
    rng = np.random.default_rng(20260916)
    for group in made.memory.groups:
        group[...] = rng.integers(0, 255, group.shape, dtype=np.uint8)
    return made


def test_a2_a_gather_copies_the_rows_and_counts_bytes_and_destinations_apart(producer: HostProducer) -> None:
    before = [producer.memory.areas(layer).copy() for layer in range(5)]
    source: Ids = {0: [5, 0], 2: [1], 3: [2, 2], 4: []}
    destination: Ids = {0: [6, 7], 2: [6], 3: [7, 9], 4: []}
    producer.perform([gather(1, source, destination)])
    expected = [areas.copy() for areas in before]
    for layer, ids in source.items():
        for at, copy in zip(ids, destination[layer], strict=True):
            expected[layer][copy] = before[layer][at]
    assert all((producer.memory.areas(layer) == expected[layer]).all() for layer in range(5))
    assert producer.cpu_gather_bytes == 3 * 192 + 2 * 96
    assert producer.cpu_destination_blocks == 3  # one CPU block covers every layer: 6, 7 and 9
    assert producer.memory.traffic.moved_bytes == producer.cpu_gather_bytes
    assert producer.poll() == []


def pack(number: int, tokens: Ids, destination: Ids) -> PackTokens:
    return PackTokens(operation=operation(number), tokens=Rows.of(tokens), destination=Rows.of(destination))


def test_a2_d6_packed_tokens_stand_one_after_another_and_their_bytes_are_counted(producer: HostProducer) -> None:
    """Blocks of 4 tokens: layer 0 packs five of them into two blocks, layer 3 one into one."""
    before = {layer: producer.memory.typed(layer).view(np.uint32).copy() for layer in (0, 3)}
    tokens: Ids = {0: [1, 2, 11, 20, 23], 3: [22]}
    copies: Ids = {0: [9, 6], 3: [9]}
    producer.perform([pack(1, tokens, copies)])
    bytes_ = 0
    for layer, places in tokens.items():
        found = producer.memory.typed(layer).view(np.uint32)
        for at in range(4 * len(copies[layer])):
            place = found[copies[layer][at // 4], :, :, at % 4]
            if at < len(places):
                assert (place == before[layer][places[at] // 4, :, :, places[at] % 4]).all()
                bytes_ += place.nbytes
            else:
                assert (place == 0).all()
    assert producer.cpu_gather_bytes == producer.memory.traffic.moved_bytes == bytes_
    assert producer.cpu_destination_blocks == 2
    producer.perform([Acknowledge(operation=operation(1), generation=1)])
    assert [report.cpu_gather_bytes for report in producer.poll()] == [bytes_]


@pytest.mark.parametrize(
    ("tokens", "copies", "message"),
    [
        ({0: [24]}, {0: [6]}, r"tokens: expected places of full blocks in \[0, 24\), got 24 … 24"),
        ({0: [-1]}, {0: [6]}, r"tokens: expected places of full blocks in \[0, 24\), got -1 … -1"),
        ({0: [1]}, {0: [5]}, r"destination: expected copy destinations in \[6, 10\), got 5"),
        (
            {0: [1]},
            {0: [6, 7]},
            r"destination: expected blocks that the tokens of each layer fill, \{0: 1\}, got \{0: 2\}",
        ),
        (
            {0: [1]},
            {2: [6]},
            r"destination: expected blocks that the tokens of each layer fill, \{0: 1\}, got \{2: 1\}",
        ),
        ({1: [1]}, {1: [6]}, r"tokens: expected rows of layers among \[0, 2, 3, 4\], got layers \[1\]"),
    ],
)
def test_a_packing_that_does_not_fit_is_refused_and_nothing_is_written(
    producer: HostProducer, tokens: Ids, copies: Ids, message: str
) -> None:
    before = [group.copy() for group in producer.memory.groups]
    with pytest.raises(LayoutError, match=message):
        producer.perform([pack(1, tokens, copies)])
    assert all((group == old).all() for group, old in zip(producer.memory.groups, before, strict=True))


def test_a1_source_only_gathers_nothing_and_says_so(producer: HostProducer) -> None:
    producer.perform([Acknowledge(operation=operation(1), generation=1)])
    assert (producer.cpu_gather_bytes, producer.cpu_destination_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ({0: [6]}, {0: [7]}, "source: expected full blocks in [0, 6), got 6"),
        ({0: [1]}, {0: [5]}, "destination: expected copy destinations in [6, 10), got 5"),
        ({0: [1]}, {0: [10]}, "destination[0]: expected ids in [0, 10), got 10"),
        ({0: [1, 2]}, {0: [6, 6]}, "destination[0]: expected each id once, got 6 again"),
        ({0: [1]}, {2: [6]}, "destination: expected ids per layer as in source {0: 1}, got {2: 1}"),
        ({1: [1]}, {1: [6]}, "source: expected rows of layers among [0, 2, 3, 4], got layers [1]"),
    ],
)
def test_d5_a_gather_that_does_not_fit_copies_nothing(
    producer: HostProducer, source: Ids, destination: Ids, message: str
) -> None:
    good = gather(1, {0: [0]}, {0: [9]})
    with pytest.raises(LayoutError) as caught:
        producer.perform([good, gather(2, source, destination), publish(3, 1, {0: [0]})])
    assert str(caught.value) == message
    assert producer.memory.traffic.moved_bytes == 0
    assert producer.poll() == []
    assert producer.keep_map(RequestKey("a-b-c", 1)) is None


def test_f1_a_published_keep_map_is_acknowledged_and_the_last_revision_stays(producer: HostProducer) -> None:
    request = RequestKey("a-b-c", 1)
    producer.perform([publish(1, 4, {0: [0, 2]}), publish(2, 6, {0: [1]})])
    producer.perform([publish(3, 5, {0: [3]}), Release(device=(), cpu=b"")])  # overtaken on its way
    assert producer.poll() == [Acknowledged(operation=operation(n), process_epoch=EPOCH) for n in (1, 2, 3)]
    assert producer.poll() == []
    kept = producer.keep_map(request)
    assert kept is not None
    assert kept.as_lists() == {0: [1]}
    assert producer.keep_map(RequestKey("a-b-c", 2)) is None
    producer.forget(request)
    assert producer.keep_map(request) is None


def test_keep_maps_and_acknowledgements_are_bounded(world: Any) -> None:
    small = HostProducer(world.layout, full_blocks=2, total_blocks=2, process_epoch=EPOCH, requests=2)
    small.perform([publish(1, 1, {0: [0]}, "a"), publish(2, 1, {0: [0]}, "b")])
    with pytest.raises(Busy, match="producer acknowledgements is full: the limit is 2"):
        small.perform([publish(3, 2, {0: [1]}, "a")])
    assert len(small.poll()) == 2
    with pytest.raises(Busy, match="producer keep maps is full: the limit is 2"):
        small.perform([publish(4, 2, {0: [1]}, "a"), publish(5, 1, {0: [0]}, "c")])
    kept = small.keep_map(RequestKey("a", 1))
    assert kept is not None
    assert kept.as_lists() == {0: [0]}  # nothing of the refused list was performed
    small.forget(RequestKey("b", 1))
    small.perform([publish(5, 1, {0: [0]}, "c")])


def test_keys_are_in_token_order(producer: HostProducer) -> None:
    rng = np.random.default_rng(20260916)
    k = rng.standard_normal((2, 8, 3)).astype(np.float32)  # two blocks of four tokens
    for n, block in enumerate((4, 1)):
        producer.write_rows(2, block, 0, k[:, 4 * n : 4 * n + 4].copy(), np.zeros((2, 4, 3), np.float32))
    keys = producer.keys(2, i32(4, 1))
    assert keys.dtype == np.float32
    assert keys.tolist() == k.tolist()
    assert producer.keys(2, i32()).shape == (2, 0, 3)


def test_keys_of_packed_blocks_are_natural_and_widened(
    packed_world: Any, vnni_by_element: Callable[[npt.NDArray[np.uint16]], npt.NDArray[np.uint16]]
) -> None:
    producer = HostProducer(packed_world.layout, full_blocks=2, total_blocks=2, process_epoch=EPOCH)
    rng = np.random.default_rng(20260916)
    wide = rng.standard_normal((2, 2, 32, 32)).astype(np.float32)
    block = (wide.view(np.uint32) >> 16).astype(np.uint16)
    producer.memory.areas(1)[0] = vnni_by_element(block).view(np.uint8)
    keys = producer.keys(1, i32(0))
    for head in range(2):
        for token in range(32):
            for dim in range(32):
                assert np.float32(keys[head, token, dim]).tobytes() == b"\0\0" + block[0, head, token, dim].tobytes()
    assert producer.read(1, i32(0)).tobytes() == block.tobytes()


def test_bad_blocks_and_sizes_are_refused(world: Any, producer: HostProducer) -> None:
    zeros = np.zeros((2, 1, 3), np.float32)
    with pytest.raises(LayoutError, match=r"source: expected a full block in \[0, 6\), got 6"):
        producer.write_rows(0, 6, 0, zeros, zeros)
    with pytest.raises(LayoutError, match=r"blocks: expected ids in \[0, 10\) in layer 0, got 10"):
        producer.keys(0, i32(10))
    with pytest.raises(LayoutError, match="total_blocks: expected N ≥ K ≥ 1, got N 3, K 4"):
        HostProducer(world.layout, full_blocks=4, total_blocks=3, process_epoch=EPOCH)
    with pytest.raises(LayoutError, match="requests: expected at least 1, got 0"):
        HostProducer(world.layout, full_blocks=4, total_blocks=4, process_epoch=EPOCH, requests=0)
