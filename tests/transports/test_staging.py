"""The staging ring: a slot is not handed out again before its completion event."""

from typing import Any

import pytest

from kvsweep.ledger.errors import LayoutError
from kvsweep.transports.staging import StagingRing


def test_d8_a_slot_is_not_reused_before_its_completion_event() -> None:
    ring = StagingRing(slots=2, slot_bytes=8)
    first, second = ring.acquire(), ring.acquire()
    assert not ring.ready
    with pytest.raises(LayoutError) as caught:
        ring.acquire()
    assert str(caught.value) == "staging slot: expected slot 0 completed before its reuse, got a copy still pending"
    second.complete()  # the events may come in any order; the ring waits for the slot whose turn it is
    assert not ring.ready
    first.complete()
    assert ring.acquire() is first
    assert ring.acquire() is second


def test_d8_a_ring_that_reused_early_would_upload_wrong_bytes(make_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is needed: a ring without it loses bytes for some order of the streams."""

    def upload(seed: int) -> bool:
        world = make_world(seed=seed)
        world.device.queue(world.transfer(1, {0: [0, 1, 2, 3, 4, 5, 6, 7]}, {0: [0, 1, 2, 3, 4, 5, 6, 7]}))
        world.device.advance()
        return all(world.device_bytes(0, block) == world.cpu_bytes(0, block) for block in range(8))

    assert all(upload(seed) for seed in range(10))

    def early(ring: StagingRing) -> Any:
        slot = ring._slots[ring._next]
        ring._next = (ring._next + 1) % len(ring._slots)
        return slot

    monkeypatch.setattr(StagingRing, "ready", True)
    monkeypatch.setattr(StagingRing, "acquire", early)
    assert not all(upload(seed) for seed in range(10))


def test_a_slot_refuses_more_than_it_holds() -> None:
    slot = StagingRing(slots=1, slot_bytes=8).acquire()
    assert slot.blocks(2, 4).shape == (2, 4)
    with pytest.raises(LayoutError) as caught:
        slot.blocks(3, 4)
    assert str(caught.value) == "staging slot: expected at most 8 bytes, got 12 bytes"


def test_a_ring_has_slots() -> None:
    for slots, size in ((0, 8), (2, 0)):
        with pytest.raises(LayoutError, match="staging: expected at least 1 slot of at least 1 byte"):
            StagingRing(slots=slots, slot_bytes=size)
