"""What a core keeps between two messages beside its state: the last plan, and which operations are spoken of."""

from tests.runtime.conftest import MakeRig
from tests.runtime.rig import CoreRig, Ids, selection

from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Abort, Finish, Preempt, Resume, Select, Transfer

FIRST: Ids = {0: [0, 2, 5], 1: [1, 2, 7]}
SECOND: Ids = {0: [0, 2, 6], 1: [1, 2, 3]}


def test_g3_a_selection_that_is_sent_again_is_planned_on_what_is_held_then(make_rig: MakeRig) -> None:
    """The plan between asking for room and getting it is kept; nothing of it may outlive the state it was made on."""
    rig = make_rig(device_blocks=4)
    key, other = rig.open("a"), rig.open("b")
    rig.upload(key, {0: [0, 2], 1: [0, 2]})
    rig.upload(other, {0: [0, 2], 1: [0, 2]})
    command = Select(selection=selection(rig.layout, key, 2, {0: [0, 2, 5], 1: [0, 2, 5]}), idempotency_key="")
    refused = rig.send(command)
    assert refused.refusal is not None
    assert refused.refusal.what == "no_space"
    rig.send(Preempt(request=key))
    rig.send(Resume(request=key))
    rig.send(Finish(request=other))
    rig.all_done(rig.started(rig.send(command)))
    assert rig.view(key).logical.as_lists() == {0: [0, 2, 5], 1: [0, 2, 5]}, "not only what was missing before"
    rig.lawful()


def test_the_floor_is_the_lowest_operation_that_may_still_be_spoken_of(rig: CoreRig) -> None:
    """Open or settling, of any request; a rank forgets what lies below it."""
    first, second = rig.open("a"), rig.open("b")

    def floor_of_next(key: RequestKey, want: Ids) -> tuple[int, Operation]:
        operation = rig.started(rig.select(key, want))
        return rig.last(Transfer).floor, operation

    found, waits = floor_of_next(first, FIRST)
    assert found == waits.operation_id, "nothing else is open"
    found, other = floor_of_next(second, FIRST)
    assert found == waits.operation_id
    rig.all_done(other)
    rig.acknowledge(other)
    rig.send(Abort(operation=waits, reason="a test"))
    found, third = floor_of_next(second, SECOND)
    assert found == waits.operation_id, "it settles"
    rig.all_done(waits)
    rig.all_done(third)
    rig.acknowledge(third)
    found, last = floor_of_next(first, FIRST)
    assert found == last.operation_id
