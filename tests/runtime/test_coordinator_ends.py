"""The shell: repeated calls, joined calls, and the end of the context."""

from functools import partial

import anyio
import anyio.lowlevel
import pytest
from tests.runtime.rig import rows
from tests.runtime.shell import FIRST, SECOND, Shell, fail_fast, fast, soon

from kvsweep.ledger.errors import Aborted, LayoutError, LogError, NotSettled
from kvsweep.ledger.ids import RequestKey, no_rows
from kvsweep.ledger.messages import Retain, Select
from kvsweep.runtime.coordinator import RetainResult
from kvsweep.runtime.core.upload_plan import keep_slots
from kvsweep.transports.rank import RankWorker


async def test_f3_a_repeated_call_shares_the_first_operation_and_its_result() -> None:
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            chosen = shell.selection(key, FIRST)
            shell.hold_next()
            results = []

            async def upload() -> None:
                results.append(await shell.kv.upload(chosen, idempotency_key="s1"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload)
                tasks.start_soon(upload)
                await soon(lambda: rig.devices[0].queued > 0)
                shell.let_go()
            results.append(await shell.kv.upload(chosen, idempotency_key="s1"))
            assert len({result.operation for result in results}) == 1
            assert rig.devices[0].memory.traffic.written_bytes == rig.driver.metrics.h2d_bytes == 6 * 32
            assert [result.metrics.h2d_bytes for result in results] == [6 * 32] * 3


async def test_f3_a_repeated_call_for_an_aborted_operation_says_aborted() -> None:
    """The first result is reused, and that result was an abort: no success is made up."""
    shell = Shell(**fast())
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            chosen = shell.selection(key, FIRST)
            shell.hold_next()
            with pytest.raises(Aborted):
                await shell.kv.upload(chosen, idempotency_key="s1")
            with pytest.raises(Aborted):
                await shell.kv.upload(chosen, idempotency_key="s1")
            shell.let_go()
            await shell.kv.settled()
            with pytest.raises(Aborted):
                await shell.kv.upload(chosen, idempotency_key="s1")
            assert shell.rig.request(key).view is None


async def test_f3_a_second_waiter_stays_when_the_first_one_leaves_after_the_commit() -> None:
    """A commit stands whoever leaves; the other caller still learns of the end."""
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            step, _ = shell.kv.begin_step([key])
            request = rig.request(key)
            keep = keep_slots(request, rows({0: [0, 2], 1: [1, 2]}))
            done: list[RetainResult] = []
            left = anyio.CancelScope()

            async def retain() -> None:
                done.append(
                    await shell.kv.retain(
                        key, keep, adopt=no_rows((0, 1)), map_revision=1, selection_revision=1, idempotency_key="r1"
                    )
                )

            async def leaves() -> None:
                with left:
                    await retain()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leaves)
                tasks.start_soon(retain)
                await soon(lambda: rig.request(key).retain.phase == "COMMITTED")
                left.cancel()
                await anyio.wait_all_tasks_blocked()
                shell.kv.end_step(step)
            assert [result.method for result in done] == ["shared"]


async def test_f3_a_caller_may_join_an_operation_that_the_driver_started() -> None:
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            keep = keep_slots(rig.request(key), rows({0: [0, 2], 1: [1, 2]}))
            nothing = no_rows((0, 1))
            named = {"map_revision": 1, "selection_revision": 1}
            shell.kv.handle(Retain(request=key, keep=keep, adopt=nothing, idempotency_key="r1", **named))
            result = await shell.kv.retain(key, keep, adopt=nothing, idempotency_key="r1", **named)
            assert result.method == "shared"
            assert result.metrics.table_updates == 2


async def test_f1_leaving_the_context_waits_until_all_is_settled() -> None:
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            shell.kv.handle(Select(selection=shell.selection(key, FIRST), idempotency_key=""))
        assert rig.request(key).upload.phase == "IDLE"
        assert rig.request(key).current == 1
        assert rig.driver.pending() == []
        rig.check_bytes(key)


async def test_g2_leaving_the_context_with_a_step_open_names_what_is_not_settled() -> None:
    """Leaving proves nothing: what an open step reads stays held, and the reason is said after the deadline."""
    shell = Shell(**fast())
    rig = shell.rig
    expected = pytest.RaisesExc(NotSettled, match=r"view 1 is read by steps \(1,\)")
    with fail_fast(), pytest.RaisesGroup(expected, flatten_subgroups=True):
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            shell.kv.begin_step([key])
            await shell.upload(key, SECOND)
    assert len(rig.request(key).views) == 2


async def test_f1_an_error_in_the_context_leaves_at_once() -> None:
    shell = Shell()
    with fail_fast():
        with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
            async with shell:
                key = shell.rig.open()
                shell.hold_next()
                shell.kv.handle(Select(selection=shell.selection(key, FIRST), idempotency_key=""))
                raise LogError("the loop failed")
        assert caught.group_contains(LogError)
        assert shell.rig.request(key).upload.phase == "MOVING"


def forgotten(worker: RankWorker, key: RequestKey, row: int) -> bool:
    """Whether the rank has no table of generation 1 in this row any more."""
    try:
        worker.table(key, row, 1, 0)
    except LayoutError:
        return True
    return False


async def test_f1_a_closed_request_leaves_nothing_with_ranks_and_producer() -> None:
    shell = Shell(ranks=2)
    rig = shell.rig
    with fail_fast():
        async with shell:
            for number in range(3):
                key = rig.open(f"r{number}")
                await shell.upload(key, FIRST)
                row = rig.view(key).row
                assert not any(forgotten(worker, key, row) for worker in rig.workers)
                await shell.kv.upload(shell.selection(key, {0: [0], 1: [1]}), idempotency_key="")
                assert rig.producer.keep_map(key) is not None
                shell.kv.finish(key)
                await shell.kv.until(lambda key=key: rig.request(key).life == "CLOSED")  # type: ignore[misc]
                assert rig.producer.keep_map(key) is None
                for worker in rig.workers:
                    await soon(partial(forgotten, worker, key, row))
        assert rig.driver.pools.device.free == (64,)
