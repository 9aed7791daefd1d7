"""Messages that have not the types of their declaration: one named error each, nothing changed, nothing raised raw."""

from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from tests.runtime.device_rig import DeviceRig

from kvsweep.ledger.errors import Malformed
from kvsweep.ledger.ids import Operation, RequestKey, Rows, no_rows
from kvsweep.ledger.messages import (
    Abort,
    Acknowledged,
    AttachPrefix,
    BlockSelection,
    Done,
    EvictPrefix,
    Finish,
    OpenRequest,
    OpenTail,
    Preempt,
    ProcessLost,
    ProcessStarted,
    PublishPrefix,
    RegisterSources,
    Report,
    Reserved,
    Resume,
    Retain,
    SealTail,
    Select,
)
from kvsweep.runtime.core.well_formed import MESSAGES, check_message

KEY = RequestKey("a", 1)
OPERATION = Operation(request=KEY, operation_id=1, pool_generation=1, map_revision=0)
SELECTION = BlockSelection(
    request=KEY,
    selection_revision=1,
    block_size=4,
    logical_blocks_by_layer=no_rows((0, 1)),
    ranked_tail_by_layer=no_rows((0, 1)),
    group_by_layer=b"\0" * 8,
    whole_blocks=8,
    effective_budget_blocks=0,
)
WELL_FORMED: tuple[Any, ...] = (
    OpenRequest(request_id="b"),
    RegisterSources(request=KEY, logical=b"", source=b""),
    OpenTail(request=KEY, until=0),
    SealTail(request=KEY, confirmed_tokens=0),
    Select(selection=SELECTION, idempotency_key="k"),
    Retain(
        request=KEY,
        keep=no_rows((0, 1)),
        adopt=no_rows(),
        map_revision=0,
        selection_revision=1,
        idempotency_key="k",
    ),
    Abort(operation=OPERATION, reason="r"),
    Preempt(request=KEY),
    Resume(request=KEY),
    Finish(request=KEY),
    PublishPrefix(request=KEY, keys=((0, "k"),)),
    AttachPrefix(request=KEY, keys=("k",)),
    EvictPrefix(blocks=0),
    Done(operation=OPERATION, rank=0, process_epoch=1, outcome="completed"),
    Acknowledged(operation=OPERATION, process_epoch=1),
    ProcessStarted(process_epoch=1, rank=0),
    ProcessLost(rank=0, process_epoch=1),
    Reserved(cause=OpenTail(request=KEY, until=0), device=(b"",), cpu_full=b"", cpu_copy=b"", free=0),
)
ODD: tuple[Any, ...] = (None, True, 3, -1.5, "x", b"abc", (), (1,), [1], {"a": 1}, object(), KEY, 2**70)


def test_every_message_there_is_is_looked_at() -> None:
    assert {type(message) for message in WELL_FORMED} == set(MESSAGES)
    for message in WELL_FORMED:
        check_message(message)
    check_message(ProcessStarted(process_epoch=1))


@pytest.mark.parametrize("message", WELL_FORMED, ids=lambda message: type(message).__name__)
def test_no_value_of_another_type_in_any_field_raises_raw(message: Any) -> None:
    """A report raises nothing at all; a command raises Malformed. The state stays as it was."""
    rig = DeviceRig()
    rig.open()
    before = rig.driver.state
    for name, odd in product(message.__struct_fields__, ODD):
        if fits(message, name, odd):
            continue
        bad = msgspec.structs.replace(message, **{name: odd})
        if isinstance(message, get_args(Report)) and not isinstance(message, Reserved):
            turn = rig.driver.handle(bad)
            assert turn.outcome == "refused", bad
            assert turn.refusal is not None
            assert turn.refusal.reason.startswith(f"{type(message).__name__}.{name}"), bad
        else:
            with pytest.raises(Malformed, match=rf"{type(message).__name__}\.{name}"):
                rig.driver.handle(bad)
    assert rig.driver.state is before
    assert rig.driver.read_only is None


def fits(message: Any, name: str, odd: object) -> bool:
    """Whether the odd value has the declared type after all."""
    now = getattr(message, name)
    if odd is None:
        return (type(message), name) in {(ProcessStarted, "rank"), (Reserved, "device")}
    if isinstance(now, float):
        return isinstance(odd, int | float) and not isinstance(odd, bool) and odd != 2**70
    return odd != 2**70 and odd != (1,) and type(odd) is type(now)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (None, "message: expected a command or a report, got NoneType"),
        (OpenTail(request=KEY, until="3"), "OpenTail.until: expected int, got str"),  # type: ignore[arg-type]
        (OpenTail(request=KEY, until=2**63), "OpenTail.until: expected an integer of 64 bits, got 9223372036854775808"),
        (OpenTail(request=KEY, until=True), "OpenTail.until: expected int, got bool"),
        (Preempt(request="a"), "Preempt.request: expected RequestKey, got str"),  # type: ignore[arg-type]
        (Preempt(request=RequestKey("a", "1")), "Preempt.request.request_epoch: expected int, got str"),  # type: ignore[arg-type]
        (
            RegisterSources(request=KEY, logical=b"abc", source=b""),
            "RegisterSources.logical: expected whole int32 values, got 3 bytes",
        ),
        (AttachPrefix(request=KEY, keys=("k", 1)), "AttachPrefix.keys[1]: expected str, got int"),  # type: ignore[arg-type]
        (AttachPrefix(request=KEY, keys=["k"]), "AttachPrefix.keys: expected tuple, got list"),  # type: ignore[arg-type]
        (PublishPrefix(request=KEY, keys=((0,),)), "PublishPrefix.keys[0]: expected 2 values, got 1"),  # type: ignore[arg-type]
        (ProcessStarted(process_epoch=1, rank="0"), "ProcessStarted.rank: expected int, got str"),  # type: ignore[arg-type]
        (
            Select(
                selection=msgspec.structs.replace(
                    SELECTION, logical_blocks_by_layer=Rows(layer_bytes=b"\0" * 4, row_ptr_bytes=b"", id_bytes=b"")
                ),
                idempotency_key="k",
            ),
            "Select.selection.logical_blocks_by_layer.row_ptr: expected 2 values, one more than layers, got 0 values",
        ),
    ],
)
def test_the_field_is_named_with_what_was_expected_and_what_came(message: Any, said: str) -> None:
    with pytest.raises(Malformed) as error:
        check_message(message)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("a", "request: expected RequestKey, got str"),
        (RequestKey("a", None), "request.request_epoch: expected int, got NoneType"),
    ],  # type: ignore[arg-type]
)
def test_steps_and_residency_name_a_life_by_its_key(key: Any, said: str) -> None:
    rig = DeviceRig()
    rig.open()
    with pytest.raises(Malformed) as step:
        rig.driver.begin_step([key])
    assert str(step.value) == f"begin_step.{said}"
    with pytest.raises(Malformed) as residency:
        rig.driver.residency(key)
    assert str(residency.value) == f"residency.{said}"
