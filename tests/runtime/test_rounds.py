"""Churn for many rounds: bytes stay right, owned blocks stay within their bound, nothing grows, laws hold."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.runtime.device_rig import SEED, DeviceRig
from tests.runtime.rig import make_layout

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import Int32, RequestKey, Rows
from kvsweep.ledger.messages import Abort, Turn

LAYERS, WHOLE, BUDGET, MOST_NEW = 3, 32, 8, 3


class Churn:
    """One request whose layers each drop and add a few blocks a round, on their own or all alike."""

    def __init__(self, rig: DeviceRig, seed: int = SEED, *, alike: bool = False) -> None:
        self.rig, self.alike = rig, alike
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.key: RequestKey = rig.open()
        first = self.rng.permutation(rig.whole)[:BUDGET].astype(np.int32)
        self.want: dict[int, Int32] = {
            layer: first if alike else self.rng.permutation(rig.whole)[:BUDGET].astype(np.int32)
            for layer in rig.layout.active_layers
        }
        self.bound = 0
        self.owned_most = 0

    def draw(self) -> None:
        """The next wanted sets."""
        changed: Int32 | None = None
        for layer, ids in self.want.items():
            if changed is None or not self.alike:
                count = int(self.rng.integers(MOST_NEW + 1))
                others = np.setdiff1d(np.arange(self.rig.whole, dtype=np.int32), ids)
                kept = self.rng.permutation(ids)[count:]
                changed = np.concatenate((kept, self.rng.permutation(others)[:count])).astype(np.int32)
            self.want[layer] = changed

    def tail(self) -> dict[int, Int32]:
        """Everything that is not wanted, in an order that is not that of ids."""
        return {
            layer: self.rng.permutation(np.setdiff1d(np.arange(self.rig.whole, dtype=np.int32), ids))
            for layer, ids in self.want.items()
        }

    def started(self, turn: Turn) -> Turn:
        """Count after every decision, before anything moves."""
        assert turn.outcome == "accepted", turn.refusal
        held = max(self.rig.held_per_layer(self.key).values())
        owned = self.rig.owned(self.key)
        self.bound = max(self.bound, held)
        self.owned_most = max(self.owned_most, owned)
        if any(any(reserved) for event in turn.events if (reserved := getattr(event, "reserved", ()))):
            assert owned == held, "blocks were reserved although areas were vacant"
        return turn

    def upload(self) -> Turn:
        name = f"select-{len(self.rig.events)}"
        return self.started(self.rig.select(self.key, self.want, tail=self.tail(), idempotency_key=name))

    def retain(self) -> Turn | None:
        """Keep what is wanted, where the view holds more than that."""
        view = self.rig.view(self.key)
        if all(ids.size == self.want[layer].size for layer, ids in view.logical.items()):
            return None
        return self.started(self.rig.retain(self.key, self.want))

    def round(self) -> None:
        self.draw()
        self.upload()
        self.rig.quiet()
        self.rig.check_bytes(self.key)
        self.retain()
        self.rig.quiet()
        self.rig.check_bytes(self.key)
        view = self.rig.view(self.key)
        for layer, ids in self.want.items():
            assert np.array_equal(np.sort(view.logical.row(layer)), np.sort(ids)), "a wanted block is not resident"
        if not self.rig.driver.settings.retain.layer_tables:
            assert len({ids.tobytes() for _, ids in view.physical.items()}) == 1, "one table must serve every layer"


def elements(value: Any) -> int:
    """Leaves of a nested value; bytes count by ids."""
    if isinstance(value, dict):
        return sum(elements(part) for part in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(elements(part) for part in value)
    return 1 + len(value) // 4 if isinstance(value, bytes) else 1


def state_size(rig: DeviceRig) -> int:
    return elements(msgspec.to_builtins(rig.driver.state.canonical(), builtin_types=(bytes,)))


def churning(
    seed: int = SEED, *, ranks: int = 1, alike: bool = False, staging_bytes: int = 4096, **settings: Any
) -> Churn:
    layout = make_layout(LAYERS, block_size=2)
    rig = DeviceRig(layout, ranks=ranks, whole=WHOLE, seed=seed, staging_bytes=staging_bytes, **settings)
    return Churn(rig, seed, alike=alike)


def test_b6_a_thousand_rounds_of_churn_stay_within_the_owned_bound_and_grow_nothing() -> None:
    churn, sizes = churning(), []
    rig = churn.rig
    for number in range(1000):
        churn.round()
        if rig.request(churn.key).keep_map is None:  # a keep map lives until the next commit
            sizes.append(state_size(rig))
        if number % 100 == 0:
            rig.driver.check_laws()
    rig.driver.check_laws()
    assert churn.owned_most <= BUDGET + MOST_NEW, "nothing drains or is quarantined: owned ≤ K + new"
    assert churn.owned_most == churn.bound
    assert max(sizes[500:]) <= max(sizes[100:500]), "some table grows with the number of rounds"
    assert rig.driver.metrics.remap["layer"] > 900
    assert rig.driver.metrics.resident_moved_bytes == rig.devices[0].memory.traffic.moved_bytes == 0
    assert rig.workers[0].remembered <= 2, "the rank forgets what the floor has passed"
    assert rig.driver.metrics.h2d_bytes == rig.devices[0].memory.traffic.written_bytes > 0


def test_b6_after_a_first_keep_pack_leaves_the_largest_layer_count_and_needs_no_free_block() -> None:
    rig = DeviceRig(make_layout(LAYERS, block_size=2), whole=WHOLE, device_blocks=WHOLE)
    churn = Churn(rig)
    smaller = {layer: ids[: BUDGET - layer % 2] for layer, ids in churn.want.items()}
    churn.want = {layer: np.arange(WHOLE, dtype=np.int32) for layer in smaller}
    churn.upload()
    rig.quiet()
    assert rig.driver.pools.device.free == (0,)
    churn.want = smaller
    churn.retain()
    rig.quiet()
    scattered = rig.owned(churn.key)
    assert scattered > BUDGET, "a first keep alone leaves areas scattered"
    for taken in range(1, WHOLE - scattered + 1):  # an empty pool: nothing that freed may help
        assert rig.driver.pools.device.reserve(0, 1) is not None, taken
    turn = churn.started(rig.retain(churn.key, dict(rig.view(churn.key).logical.items()), pack=True))
    assert all(not any(planned.reserved) for planned in turn.events if isinstance(planned, e.RetainPlanned))
    rig.quiet()
    assert rig.owned(churn.key) == BUDGET == max(rig.view(churn.key).physical.counts)
    assert rig.driver.metrics.packed_bytes == rig.devices[0].memory.traffic.moved_bytes > 0
    assert rig.driver.metrics.packed_bytes == rig.driver.metrics.resident_moved_bytes
    rig.check_bytes(churn.key)
    rig.driver.check_laws()


@pytest.mark.parametrize(
    ("settings", "alike", "mode"),
    [
        ({"retain": {"layer_tables": False}}, False, "move"),
        ({"retain": {"layer_tables": False}}, True, "shared"),
        ({"source": {"kind": "copy", "allow_copy": True}}, False, "layer"),
    ],
    ids=["byte_move", "shared_table", "copy"],
)
def test_b3_every_way_to_retain_and_every_source_kind_keeps_the_same_bytes(
    settings: dict[str, Any], alike: bool, mode: str
) -> None:
    churn = churning(alike=alike, **settings)
    for _ in range(60):
        churn.round()
    metrics, device = churn.rig.driver.metrics, churn.rig.devices[0]
    assert {way for way, count in metrics.remap.items() if count} == {mode}
    assert metrics.resident_moved_bytes == device.memory.traffic.moved_bytes
    assert (metrics.resident_moved_bytes > 0) == (mode == "move")
    copied = settings.get("source", {}).get("kind") == "copy"
    assert (metrics.cpu_gather_bytes > 0) == copied
    assert metrics.cpu_gather_bytes == churn.rig.producer.cpu_gather_bytes
    assert (metrics.cpu_destination_blocks > 0) == copied
    assert churn.rig.driver.pools.cpu.free == (128 - WHOLE, 64), "leased copies came back"
    if mode != "move":
        assert churn.owned_most <= BUDGET + MOST_NEW
    churn.rig.driver.check_laws()


class Readers:
    """Steps that stay open over rounds, each with what it was handed; they end in any order."""

    def __init__(self, churn: Churn, most: int) -> None:
        self.churn, self.most = churn, most
        self.open: dict[int, tuple[Any, Rows[Any]]] = {}
        self.reads = 0

    def begin(self) -> None:
        rig, key = self.churn.rig, self.churn.key
        if rig.request(key).view is None:
            return
        number, handed = rig.driver.begin_step([key])
        self.open[number] = (handed[key], rig.view(key).logical)

    def check(self) -> None:
        for handed, logical in self.open.values():
            self.churn.rig.check_reader(self.churn.key, handed, logical)
            self.reads += 1

    def end_some(self) -> None:
        """At random, and always where more generations than `most` are held."""
        for number in self.churn.rng.permutation(list(self.open)).tolist():
            generations = {handed.generation for handed, _ in self.open.values()}
            if len(generations) > self.most or self.churn.rng.random() < 0.3:
                self.churn.rig.driver.end_step(number)
                del self.open[number]

    def end_all(self) -> None:
        for number in list(self.open):
            self.churn.rig.driver.end_step(number)
        self.open = {}


def test_g1_readers_of_old_generations_see_right_bytes_while_areas_are_reused() -> None:
    churn = churning(ranks=2, retain={"table_rows": 5})
    rig, readers, older = churn.rig, Readers(churn, most=2), 0
    for _ in range(70):
        readers.begin()
        churn.draw()
        churn.upload()
        while rig.turn(1):
            readers.check()
        readers.begin()
        readers.end_some()
        churn.retain()
        while rig.turn(1):
            readers.check()
        current = rig.request(churn.key).current
        older += sum(handed.generation != current for handed, _ in readers.open.values())
        # A retain waits for the readers of the view it replaced.
        while rig.request(churn.key).retain.phase != "IDLE":
            waits_for = {view.generation for view in rig.request(churn.key).views} - {current}
            number = next(n for n, (handed, _) in readers.open.items() if handed.generation in waits_for)
            rig.driver.end_step(number)
            del readers.open[number]
            rig.quiet()
        rig.check_bytes(churn.key)
    assert older > 10
    assert readers.reads > 300
    readers.end_all()
    rig.quiet()
    assert rig.driver.pending() == []
    assert len(rig.request(churn.key).views) == 1
    assert churn.owned_most <= churn.bound
    rig.driver.check_laws()


@pytest.mark.parametrize("layer_tables", [True, False], ids=["layer_tables", "byte_move"])
def test_g3_aborts_preemptions_and_retries_at_any_moment_leave_right_bytes_and_lose_no_block(
    layer_tables: bool,
) -> None:
    # Staging of two blocks: an operation is many copies, so it can be stopped in the middle.
    churn = churning(ranks=2, staging_bytes=128, retain={"table_rows": 5, "layer_tables": layer_tables})
    rig, key, rng = churn.rig, churn.key, churn.rng
    readers, slow = Readers(churn, most=1), rig.devices[1]
    aborted = preempted = late = 0

    def settle() -> None:
        """What has committed goes on to its acknowledgement; what a reader holds back ends with its step."""
        while rig.request(key).upload.phase != "IDLE" or rig.request(key).retain.phase != "IDLE":
            readers.end_all()
            rig.quiet()

    for _ in range(90):
        churn.draw()
        readers.end_some()
        for start, other in ((churn.upload, churn.retain), (churn.retain, churn.upload)):
            turn = start()
            if turn is None or turn.operation is None:
                continue
            for _ in range(int(rng.integers(6))):
                rig.turn(1)
                readers.check()
            request = rig.request(key)
            opened = [lane.open for lane in (request.upload, request.retain) if lane.phase in ("MOVING", "APPLYING")]
            chance = rng.random()
            if opened and opened[0] is not None and chance < 0.7:
                before = request.view
                slow.faults.hold.add(opened[0].operation.operation_id)
                rig.driver.handle(Abort(operation=opened[0].operation, reason="test"))
                aborted += 1
                assert rig.request(key).view == before, "the old residency is whole"
                rig.quiet()
                late += bool(rig.request(key).settling)
                if before is not None and rng.random() < 0.5:
                    churn.draw()
                    other()  # commits through other streams while late copies of the first attempt are still to come
                else:
                    start()  # a retry, planned while the first attempt may still settle
                rig.quiet()
                readers.check()
                rig.check_bytes(key)
                slow.faults.hold.clear()
            elif chance < 0.85:
                rig.preempt_and_resume(key)
                preempted += 1
                settle()
                churn.upload()
            while rig.turn(1):
                readers.check()
            settle()
            rig.check_bytes(key)
        readers.begin()
        rig.driver.check_laws()
    assert aborted > 20
    assert preempted > 5
    assert late > 5, "some attempts still settled when the next one was planned"
    assert readers.reads > 200
    readers.end_all()
    rig.finish(key)
    rig.quiet()
    assert rig.request(key).life == "CLOSED"
    assert rig.driver.pools.device.free == (64,), "every block came back"
    assert rig.driver.pools.cpu.free == (128, 64)
    rig.driver.check_laws()
