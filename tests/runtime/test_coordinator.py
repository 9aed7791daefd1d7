"""The shell: callers wait for the end of their operation, and leaving early turns it back."""

import anyio
import anyio.lowlevel
import pytest
from tests.runtime.shell import FIRST, SECOND, Shell, fail_fast, fast, soon

from kvsweep.ledger.errors import Aborted, PoolExhausted, Refused
from kvsweep.ledger.messages import OpenTail, Preempt, SealTail
from kvsweep.runtime.coordinator import RetainResult
from kvsweep.transports.blocks import POISON


async def test_f1_upload_and_retain_wait_for_the_commit_of_every_rank_and_give_the_residency() -> None:
    shell = Shell(ranks=2)
    async with shell:
        key = shell.rig.open()
        result = await shell.kv.upload(shell.selection(key, FIRST), idempotency_key="s1")
        assert result.residency.logical_by_slot_by_layer.as_lists() == FIRST
        assert result.residency.map_revision == 1
        assert result.metrics.h2d_bytes == sum(d.memory.traffic.written_bytes for d in shell.rig.devices) > 0
        kept = await shell.retain(key, {0: [0, 5], 1: [2, 7]})
        assert kept.method == "layer"
        assert kept.attention == "same"
        assert kept.residency.logical_by_slot_by_layer.as_lists() == {0: [0, 5], 1: [2, 7]}
        assert kept.metrics.resident_moved_bytes == 0
        assert kept.metrics.table_updates == 4
        shell.rig.check_bytes(key)


async def test_a_task_that_waits_for_one_request_is_not_woken_for_others() -> None:
    """Thousands may wait: an upload of one request costs the others nothing."""
    shell = Shell(ranks=2)
    looked: dict[str, int] = {}
    async with shell:
        key, other = shell.rig.open("a", blocks=8), shell.rig.open("b", blocks=8)

        def closed() -> bool:
            looked["b"] = looked.get("b", 0) + 1
            return shell.rig.request(other).life == "CLOSED"

        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(shell.kv.until, closed, other)
            await soon(lambda: looked.get("b") == 1000)
            await shell.upload(key, FIRST)
            await shell.retain(key, {0: [0, 2], 1: [1, 2]})
            await shell.kv.settled(key)
            assert looked["b"] == 1000, "each has looked once"
            shell.kv.finish(other)
        assert looked["b"] <= 3 * 1000, "woken by the events of their own request"


async def test_b7_a_retain_reports_its_own_moved_bytes_and_released_blocks() -> None:
    """Two independent figures of this operation: here nothing moves and one block goes back."""
    shell = Shell()
    async with shell:
        key = shell.rig.open()
        await shell.upload(key, FIRST)
        kept = await shell.retain(key, {0: [0, 2], 1: [1, 2]})
        assert kept.method == "shared"
        assert (kept.metrics.resident_moved_bytes, kept.metrics.physical_blocks_released) == (0, 1)
        await shell.kv.settled()
        for layer in (0, 1):
            assert (shell.rig.devices[0].memory.areas(layer)[2] == POISON).all(), "freed blocks read as NaN"


async def test_f1_a_zero_byte_upload_publishes_a_keep_map_and_keeps_the_residency() -> None:
    shell = Shell()
    async with shell:
        key = shell.rig.open()
        await shell.upload(key, FIRST)
        result = await shell.kv.upload(shell.selection(key, {0: [0, 5], 1: [7]}), idempotency_key="s2")
        assert result.residency.map_revision == 1
        assert result.metrics.h2d_bytes == 0
        keep = shell.rig.producer.keep_map(key)
        assert keep is not None
        assert keep.as_lists() == {0: [0, 2], 1: [2]}


async def test_g3_leaving_an_upload_aborts_it_at_once_and_its_destinations_settle_later() -> None:
    shell = Shell(ranks=2)
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            old, free = rig.request(key).view, rig.driver.pools.device.free
            number = shell.hold_next(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.upload, key, SECOND)
                await soon(lambda: bool(rig.devices[1].queued) and not rig.devices[0].queued)
                rig.devices[1].faults.hold.clear()
                rig.devices[1].advance(1)  # something has run: it can no longer be taken back
                rig.devices[1].faults.hold.add(number)
                tasks.cancel_scope.cancel()
            request = rig.request(key)
            assert request.upload.phase == "IDLE", "aborted before the caller's scope was left"
            assert request.view == old
            assert [opened.operation.operation_id for opened in request.settling] == [number]
            assert rig.driver.pools.device.free < free, "time and cancellation free nothing"
            shell.let_go()
            await shell.kv.settled(key)
            assert rig.driver.pools.device.free == free
            rig.check_bytes(key)
            await shell.upload(key, SECOND)


async def test_g3_the_deadline_aborts_and_reports_and_frees_nothing() -> None:
    shell = Shell(ranks=2, **fast())
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            free = rig.driver.pools.device.free
            number = shell.hold_next(0)
            rig.devices[1].faults.hold.add(number)
            with pytest.raises(Aborted, match="deadline"):
                await shell.kv.upload(shell.selection(key, FIRST), idempotency_key="s1")
            assert rig.request(key).view is None
            assert rig.driver.pools.device.free < free
            shell.let_go()
            await shell.kv.settled()
            assert rig.driver.pools.device.free == free


async def test_f2_a_rank_that_fails_ends_the_upload_as_aborted() -> None:
    shell = Shell(ranks=2)
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            shell.rig.devices[1].faults.fail.add(shell.next_operation())
            with pytest.raises(Aborted, match="rank 1 failed"):
                await shell.upload(key, FIRST)
            await shell.kv.settled()
            assert shell.rig.driver.pools.device.free == (64,)
            await shell.upload(key, FIRST)


async def test_g3_no_space_raises_and_keeps_the_old_residency_which_a_retain_then_makes_room_for() -> None:
    shell = Shell(device_blocks=3)
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            await shell.upload(key, FIRST)
            old = shell.rig.request(key).view
            with pytest.raises(PoolExhausted) as caught:
                await shell.upload(key, SECOND)
            assert (caught.value.wanted, caught.value.free) == (1, 0)
            assert shell.rig.request(key).view == old
            await shell.retain(key, {0: [0, 2], 1: [1, 2]})
            await shell.upload(key, SECOND)


async def test_g1_an_open_step_delays_the_retirement_and_the_end_of_the_retain() -> None:
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            read = rig.view(key).logical
            step, handed = shell.kv.begin_step([key])
            done: list[RetainResult] = []

            async def retain() -> None:
                done.append(await shell.retain(key, {0: [0, 2], 1: [1, 2]}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(retain)
                await soon(lambda: rig.request(key).retain.phase == "COMMITTED")
                await anyio.wait_all_tasks_blocked()
                assert not done, "the next schedule is no proof of completion (G2)"
                assert rig.owned(key) == 3
                rig.check_reader(key, handed[key], read)
                shell.kv.end_step(step)
            assert done
            assert done[0].metrics.physical_blocks_released == 1
            assert rig.owned(key) == 2


async def test_g1_the_end_of_a_step_wakes_whoever_waits_for_all_to_be_settled() -> None:
    """The replaced view lies inside the new one, so its retirement frees no block and causes no effect."""
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            step, _ = shell.kv.begin_step([key])
            await shell.upload(key, SECOND)
            assert len(rig.request(key).views) == 2
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.kv.settled, key)
                await anyio.wait_all_tasks_blocked()
                shell.kv.end_step(step)
            assert len(rig.request(key).views) == 1


async def test_g1_a_command_of_the_loop_wakes_whoever_waits_for_a_condition() -> None:
    shell = Shell()
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.kv.until, lambda: shell.rig.request(key).life == "PREEMPTED")
                await anyio.wait_all_tasks_blocked()
                shell.kv.handle(Preempt(request=key))


async def test_g3_finish_while_an_upload_is_in_flight_ends_it_as_aborted_and_then_closes() -> None:
    shell = Shell(ranks=2)
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            number = shell.hold_next(1)
            errors: list[Aborted] = []

            async def upload() -> None:
                try:
                    await shell.upload(key, FIRST)
                except Aborted as error:
                    errors.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload)
                await soon(lambda: bool(rig.devices[1].queued) and not rig.devices[0].queued)
                rig.devices[1].faults.hold.clear()
                rig.devices[1].advance(1)
                rig.devices[1].faults.hold.add(number)
                shell.kv.finish(key)
            assert [error.reason for error in errors] == ["finished"]
            assert rig.request(key).life == "FINISHING"
            shell.let_go()
            await shell.kv.until(lambda: rig.request(key).life == "CLOSED")
            await soon(lambda: rig.driver.pools.device.free == (64,))
            assert rig.driver.pools.cpu.free == (128, 64)


async def test_f1_an_illegal_command_raises_and_changes_nothing_and_the_shell_goes_on() -> None:
    shell = Shell()
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            chosen = shell.selection(key, FIRST)
            await shell.kv.upload(chosen, idempotency_key="s1")
            with pytest.raises(Refused, match="selection_revision"):
                await shell.kv.upload(chosen, idempotency_key="other")
            await shell.upload(key, SECOND)


async def test_g4_tail_blocks_are_stored_and_adopted_while_steps_run() -> None:
    """A device-written block becomes a slot without a copy up or down."""
    shell = Shell()
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            shell.kv.handle(OpenTail(request=key, until=9))
            (tail,) = rig.request(key).tail
            for layer in (0, 1):
                rig.devices[0].memory.areas(layer)[tail.physical[0]] = rig.full[layer][8]
            shell.kv.handle(SealTail(request=key, confirmed_tokens=18))
            await shell.kv.until(lambda: rig.request(key).source_of(8) >= 0)
            for layer in (0, 1):
                stored = rig.producer.memory.areas(layer)[rig.request(key).source_of(8)]
                assert (stored == rig.full[layer][8]).all()
            rig.whole = 9
            written = rig.devices[0].memory.traffic.written_bytes
            await shell.upload(key, {0: [0, 2, 8], 1: [1, 3, 8]})
            assert rig.view(key).logical.as_lists() == {0: [0, 2, 5, 8], 1: [1, 2, 7, 8, 3]}
            assert rig.devices[0].memory.traffic.written_bytes == written + 32, "only block 3 came from the CPU"
            assert rig.request(key).tail == ()
            rig.check_bytes(key)
