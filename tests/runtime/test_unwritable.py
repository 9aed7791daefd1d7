"""What no ledger can hold is the fault of who said it: refused, nothing kept, and the driver goes on."""

import pytest
from tests.runtime.device_rig import DeviceRig

from kvsweep.ledger.errors import Malformed, UsageError
from kvsweep.ledger.ids import Operation, RequestKey
from kvsweep.ledger.messages import Acknowledged, Done, ProcessStarted, RegisterSources


def operation(key: RequestKey, number: int) -> Operation:
    return Operation(request=key, operation_id=number, pool_generation=1, map_revision=0)


def test_f2_a_report_that_cannot_be_written_is_refused_and_the_driver_goes_on() -> None:
    rig = DeviceRig()
    key = rig.open()
    before = rig.driver.state
    for report in (
        ProcessStarted(rank=0, process_epoch=2**63),
        Done(operation=operation(key, 2**63), rank=0, process_epoch=10, outcome="completed"),
        Acknowledged(operation=operation(key, 2**63), process_epoch=1),
    ):
        turn = rig.driver.handle(report)
        assert turn.outcome == "refused", report
        assert turn.refusal is not None
        assert "got 9223372036854775808" in turn.refusal.reason
    assert rig.driver.state is before
    assert rig.driver.read_only is None
    rig.open("after")


def test_a_command_that_cannot_be_written_raises_and_keeps_nothing() -> None:
    rig = DeviceRig()
    key = rig.open()
    free = (rig.driver.pools.device.free, rig.driver.pools.cpu.free)
    with pytest.raises(UsageError, match="OpenRequest: "):
        rig.driver.open_request("\ud800")
    with pytest.raises(Malformed, match=r"RegisterSources\.logical: expected whole int32 values, got 3 bytes"):
        rig.driver.handle(RegisterSources(request=key, logical=b"abc", source=b"\x14\0\0\0"))
    assert (rig.driver.pools.device.free, rig.driver.pools.cpu.free) == free
    assert rig.driver.read_only is None
    rig.open("after")
