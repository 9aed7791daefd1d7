"""One producer for several ranks: a shard a rank with its KV heads; together the same bytes as one shard with all."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import Operation, RequestKey, Rows
from kvsweep.ledger.layout import LayerLayout, Layout, Packing
from kvsweep.ledger.messages import Acknowledge, Acknowledged, Gather, StoreBlocks, Transfer
from kvsweep.transports.host import HostDevice
from kvsweep.transports.producer import HostProducer

K, N, SEED = 5, 9, 20260916
HEADS, WIDE = 3, 5  # of layers 0 and 1, and of layer 2


def layout(dtype: str = "float32", packing: Packing = "natural") -> Layout:
    """Layers 0 and 1 of three heads, layer 2 of five in a group of its own, layer 3 with a window."""
    size, dim = (32, 32) if packing == "vnni" else (4, 3)
    one = LayerLayout(layer=0, group=0, kind="full", kv_heads=HEADS, head_dim=dim)
    return Layout.of(
        model_hash="m", dtype=dtype, block_size=size, packing=packing,
        layers=(
            one,
            LayerLayout(layer=1, group=0, kind="full", kv_heads=HEADS, head_dim=dim),
            LayerLayout(layer=2, group=1, kind="full", kv_heads=WIDE, head_dim=dim),
            LayerLayout(layer=3, group=2, kind="sliding", kv_heads=HEADS, head_dim=dim, window_tokens=64),
        ),
    )  # fmt: skip


LAYOUTS = [layout(), layout("bfloat16"), layout("bfloat16", "vnni")]
NAMES = ["float32", "bfloat16", "vnni"]


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def tokens(one: Layout, layer: int, count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """[heads, count, head_dim], exact in either dtype."""
    shape = (one.layers[layer].kv_heads, count, one.layers[layer].head_dim)
    wide = rng.standard_normal(shape).astype(np.float32)
    if one.dtype == "float32":
        return wide
    return (wide.view(np.uint32) >> 16).astype(np.uint16)


def filled(one: Layout, ranks: int) -> HostProducer:
    """Every full block written, every block whole; the same tokens whatever the ranks."""
    rng = np.random.default_rng(SEED)
    producer = HostProducer(one, full_blocks=K, total_blocks=N, process_epoch=3, ranks=ranks)
    half = one.block_size // 2
    for layer in range(len(one.layers)):
        for block in range(K):
            for first in (0, half):
                k, v = (tokens(one, layer, half, rng) for _ in range(2))
                producer.write_rows(layer, block, first, k, v)
    return producer


def everything(producer: HostProducer) -> list[bytes]:
    blocks = np.arange(N, dtype=np.int32)
    return [producer.read(layer, blocks).tobytes() for layer in range(len(producer.layout.layers))]


def operation(number: int) -> Operation:
    return Operation(request=RequestKey("a-b-c", 1), operation_id=number, pool_generation=0, map_revision=0)


GATHER = Gather(
    operation=operation(1),
    source=Rows.of({0: [4, 0], 1: [1], 2: [2, 2]}),
    destination=Rows.of({0: [5, 6], 1: [5], 2: [6, 8]}),
)


@pytest.mark.parametrize("one", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_writes_reads_and_keys_are_those_of_one_shard(one: Layout, ranks: int) -> None:
    whole, split = filled(one, 1), filled(one, ranks)
    assert len(split.shards) == ranks
    assert everything(split) == everything(whole)
    for layer in range(len(one.layers)):
        keys = split.keys(layer, i32(3, 0, 3))
        expected = whole.keys(layer, i32(3, 0, 3))
        assert keys.dtype == np.float32
        assert keys.shape == (one.layers[layer].kv_heads, 3 * one.block_size, one.layers[layer].head_dim)
        assert keys.tobytes() == expected.tobytes()
        assert np.unique(keys).size > 50, "there is something in it"
        assert split.keys(layer, i32()).shape == (one.layers[layer].kv_heads, 0, one.layers[layer].head_dim)
        assert split.read(layer, i32()).shape == (0, one.block_bytes(layer))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_written_head_is_read_where_it_was_written(ranks: int) -> None:
    """Oracle: NumPy, head by head, with no second producer."""
    one = layout()
    producer = HostProducer(one, full_blocks=K, total_blocks=N, process_epoch=3, ranks=ranks)
    rng = np.random.default_rng(SEED)
    for layer in range(4):
        k, v = (rng.standard_normal((one.layers[layer].kv_heads, 4, 3)).astype(np.float32) for _ in range(2))
        producer.write_rows(layer, 2, 0, k, v)
        block = producer.read(layer, i32(2)).view(np.float32).reshape(2, one.layers[layer].kv_heads, 4, 3)
        assert block.tolist() == [k.tolist(), v.tolist()]
        assert producer.keys(layer, i32(2)).tolist() == k.tolist()


@pytest.mark.parametrize("one", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a2_a_gather_copies_every_head_and_counts_the_same_bytes(one: Layout, ranks: int) -> None:
    whole, split = filled(one, 1), filled(one, ranks)
    before = everything(split)
    for producer in (whole, split):
        producer.perform([GATHER])
    assert everything(split) == everything(whole) != before
    for layer, ids in GATHER.source.items():
        to = GATHER.destination.row(layer)
        assert split.read(layer, to).tobytes() == split.read(layer, ids).tobytes()
    assert split.cpu_gather_bytes == whole.cpu_gather_bytes == 3 * one.block_bytes(0) + 2 * one.block_bytes(2)
    assert split.cpu_destination_blocks == whole.cpu_destination_blocks == 3
    split.perform([Acknowledge(operation=operation(1), generation=1)])
    assert split.poll() == [
        Acknowledged(operation=operation(1), process_epoch=3, cpu_gather_bytes=split.cpu_gather_bytes)
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_gather_that_does_not_fit_copies_nothing_on_any_shard(ranks: int) -> None:
    producer = filled(layout(), ranks)
    before = everything(producer)
    bad = Gather(operation=operation(2), source=Rows.of({0: [0]}), destination=Rows.of({0: [K - 1]}))
    with pytest.raises(LayoutError, match=r"destination: expected copy destinations in \[5, 9\), got 4"):
        producer.perform([GATHER, bad])
    assert everything(producer) == before
    assert producer.cpu_gather_bytes == 0


@pytest.mark.parametrize("one", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_together_hold_what_one_rank_holds_and_give_back_what_they_took(one: Layout, ranks: int) -> None:
    """Up to each rank's device by its own shard, there the heads side by side are the block; then down to other
    CPU blocks, where the producer reads the whole again."""
    producer = filled(one, ranks)
    devices = [
        HostDevice(one.shard(rank, ranks), device_blocks=(6, 6, 6), cpu=producer.shards[rank], seed=SEED + rank)
        for rank in range(ranks)
    ]
    source, areas = Rows[Any].of({0: [4, 1], 1: [0, 2], 2: [3, 1]}), Rows[Any].of({0: [5, 0], 1: [2, 3], 2: [1, 4]})
    back = Rows[Any].of({0: [6, 7], 1: [6, 7], 2: [6, 7]})
    everyone = tuple((rank, 7) for rank in range(ranks))
    for device in devices:
        device.queue(
            Transfer(
                operation=operation(1), ranks=everyone, generation=1, row=0, source_kind="source_only", source=source,
                destination=areas, table=areas, floor=0,
            )
        )  # fmt: skip
        device.advance()
    for layer, blocks in areas.items():
        parts = []
        for rank, device in enumerate(devices):
            start, stop = one.heads_of_rank(layer, rank, ranks)
            width = {"float32": 4, "bfloat16": 2}[one.dtype] * one.layers[layer].head_dim
            parts.append(device.read(layer, blocks).reshape(blocks.size, 2, stop - start, one.block_size, width))
        together = np.concatenate(parts, axis=2)
        assert together.tobytes() == producer.read(layer, source.row(layer)).tobytes()
    every = {layer: areas.row(min(layer, 2)) for layer in range(4)}  # a store names the layers with a window too
    down = Rows[Any].of({**back.as_lists(), 3: [6, 7]})
    for device in devices:
        device.queue(
            StoreBlocks(operation=operation(2), ranks=everyone, source=Rows.of(every), destination=down, floor=0)
        )
        device.advance()
    done = [report for device in devices for report in device.poll()]
    assert {report.outcome for report in done} == {"completed"}
    for layer, blocks in back.items():
        assert producer.read(layer, blocks).tobytes() == producer.read(layer, source.row(layer)).tobytes()
    moved = sum(one.block_bytes(layer) * ids.size for layer, ids in source.items())
    assert sum(report.h2d_bytes for report in done) == moved
    assert sum(report.d2h_bytes for report in done) == moved + 2 * one.block_bytes(3)


def test_more_ranks_than_heads_are_refused_and_the_only_shard_is_only_there_for_one() -> None:
    with pytest.raises(LayoutError, match="ranks: expected 1 to 3, a KV head for each, got rank 0 of 4"):
        HostProducer(layout(), full_blocks=K, total_blocks=N, process_epoch=3, ranks=4)
    with pytest.raises(ValueError, match="too many values"):
        _ = filled(layout(), 2).memory
    assert filled(layout(), 1).memory.layout == layout()


@pytest.mark.parametrize("ranks", [1, 3])
def test_heads_that_do_not_fit_are_refused_before_anything_is_written(ranks: int) -> None:
    producer = filled(layout(), ranks)
    before = everything(producer)
    for heads in (HEADS - 1, HEADS + 1, WIDE):
        short = np.zeros((heads, 1, 3), np.float32)
        with pytest.raises(LayoutError):
            producer.write_rows(0, 0, 0, short, short)
    good = np.zeros((HEADS, 1, 3), np.float32)
    with pytest.raises(LayoutError):
        producer.write_rows(0, 0, 0, good, good[:2])
    assert everything(producer) == before
