"""The shell and its ranks: bad frames, silent ranks, ranks that come back, hostile links, a producer without room."""

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from tests.runtime.rig import RANKS
from tests.runtime.shell import FIRST, SECOND, Shell, fail_fast, fast, soon

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import Aborted, Refused
from kvsweep.ledger.messages import Done, Heard, ProcessLost, ProcessStarted, Resume
from kvsweep.runtime.clock import TurnClock
from kvsweep.transports.links import Chaos
from kvsweep.transports.wire import encode

CALM = {"transfer": {"deadline_s": 10.0}}


def refused_handshakes(shell: Shell) -> list[e.HandshakeRefused]:
    return [event for event in shell.rig.events if isinstance(event, e.HandshakeRefused)]


# ---- what a peer sends


@pytest.mark.parametrize("bad", [b"", b"\xc1", b"\0" * 40, encode(Heard(operation_id=1)), b"x" * 5000])
async def test_f2_a_bad_frame_is_noted_and_does_not_end_the_coordinator(bad: bytes) -> None:
    shell = Shell(ranks=2)
    with fail_fast():
        async with shell:
            key = shell.rig.open()
            for _ in range(100):
                await shell.ends[1].send(bad)
            await shell.upload(key, FIRST)
            await soon(lambda: len(shell.kv.bad_frames) == 64)
            assert all(f"frame of {len(bad)} bytes" in note for note in shell.kv.bad_frames)
            assert len(shell.kv.bad_frames) == 64, "noted, and bounded"
            await shell.upload(key, SECOND)


async def test_f2_a_report_that_makes_no_sense_is_refused_and_recorded_and_the_next_ones_count() -> None:
    shell = Shell(ranks=2)
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            shell.hold_next(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.upload, key, SECOND)
                await soon(lambda: rig.devices[1].queued > 0)
                opened = rig.request(key).upload.open
                assert opened is not None
                for rank, epoch in ((7, 10), (1, 10), (-1, 0)):  # rank 0 speaks for others, and for nobody
                    report = Done(operation=opened.operation, rank=rank, process_epoch=epoch, outcome="completed")
                    await shell.ends[0].send(encode(report))
                for started in (ProcessStarted(rank=9, process_epoch=1), ProcessStarted(process_epoch=99)):
                    await shell.ends[0].send(encode(started))
                huge = replace(opened.operation, operation_id=2**63)
                for operation, epoch, wait_s in (
                    (huge, 10, 0.0),
                    (opened.operation, 10, -1.0),
                    (opened.operation, 99, 0.0),
                ):
                    report = Done(operation=operation, rank=0, process_epoch=epoch, outcome="completed", wait_s=wait_s)
                    await shell.ends[0].send(encode(report))
                await soon(lambda: any(isinstance(event, e.AckRefused) for event in rig.events))
                assert len(shell.kv.bad_frames) == 7
                verdicts = [event.verdict for event in rig.events if isinstance(event, e.AckRefused)]
                assert verdicts == ["future"], "the one that a ledger can hold"
                assert not refused_handshakes(shell)
                assert rig.driver.read_only is None
                assert rig.request(key).current == 1, "none of them was counted as rank 1"
                shell.let_go()
            rig.check_bytes(key)


# ---- a rank that says nothing


async def test_g3_a_silent_rank_stalls_its_own_operation_and_no_other() -> None:
    """The other request goes on over the same ranks; the silent one ends by its deadline, with who was silent."""
    shell = Shell(ranks=2, **fast(400))
    rig = shell.rig
    with fail_fast():
        async with shell:
            quiet, busy = rig.open("quiet"), rig.open("busy")
            await shell.upload(busy, SECOND)
            number = shell.hold_next(1)
            ended: list[str] = []

            async def waits() -> None:
                with pytest.raises(Aborted) as caught:
                    await shell.upload(quiet, FIRST)
                ended.append(caught.value.reason)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waits)
                await soon(lambda: rig.devices[1].queued > 0)
                for kept in ({0: [0, 2], 1: [1, 2]}, {0: [2], 1: [1]}):
                    step, _ = shell.kv.begin_step([busy, quiet])
                    shell.kv.end_step(step)
                    await shell.upload(busy, kept)  # zero bytes: a keep map
                    await shell.retain(busy, kept)
                    rig.check_bytes(busy)
                assert not ended, "all of that beside the silent one"
            assert ended == ["deadline of 0.4 s: ranks [1] have not reported"]
            await shell.kv.settled()  # told to stop, the rank gave up what had not begun: it is not dead
            assert number in {one.operation.operation_id for one in rig.events if isinstance(one, e.TransferSettled)}
            await shell.upload(busy, FIRST)


async def test_g3_a_rank_that_died_comes_back_over_a_new_link_and_is_loaded_again() -> None:
    shell = Shell(ranks=2, **fast(50))
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            shell.kill(1)
            with pytest.raises(Aborted, match=r"ranks \[1\] have not reported"):
                await shell.upload(key, SECOND)
            assert rig.request(key).settling, "silent is not dead: nothing is freed"
            shell.connect(1, RANKS[1][1] + 1)
            await shell.kv.until(lambda: rig.request(key).life == "PREEMPTED")
            await shell.kv.settled()
            assert rig.driver.pools.device.free == (64,)
            shell.kv.handle(Resume(request=key))
            await shell.upload(key, SECOND)  # checks the bytes on both ranks
            assert rig.driver.state.pool.ranks == ((0, 10), (1, 12))


async def test_d4_a_rank_that_was_lost_is_refused_with_its_old_epoch_and_taken_with_a_new_one() -> None:
    shell = Shell(ranks=2)
    rig = shell.rig
    with fail_fast():
        async with shell:
            key = rig.open()
            await shell.upload(key, FIRST)
            shell.kill(1)
            shell.kv.handle(ProcessLost(rank=1, process_epoch=11))
            shell.kv.handle(Resume(request=key))
            shell.connect(1, 11)
            await soon(lambda: bool(refused_handshakes(shell)))
            (event,) = refused_handshakes(shell)
            assert event.peer == "rank 1"
            assert event.differences[0].got == "11"
            with pytest.raises(Refused, match="rank_lost"):
                await shell.upload(key, FIRST)
            assert rig.devices[1].memory.traffic.written_bytes == 0
            shell.kill(1)
            shell.connect(1, 12)
            await shell.kv.until(lambda: rig.driver.state.pool.lost == ())
            await shell.upload(key, FIRST)


# ---- hostile links


async def one_run(chaos: Chaos) -> tuple[str, int]:
    shell = Shell(ranks=2, chaos=chaos, deadlines=TurnClock(), **CALM)
    rig = shell.rig
    with fail_fast():
        async with shell:
            keys = [rig.open(name) for name in ("a", "b")]
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(shell.upload, key, FIRST)
            for want in (SECOND, FIRST, SECOND):
                for key in keys:
                    await shell.upload(key, want)
                    await shell.retain(key, {layer: list(ids) for layer, ids in want.items()})
                    rig.check_bytes(key)
            for key in keys:
                shell.kv.finish(key)
            await shell.kv.settled()
        assert rig.driver.pools.device.free == (64,)
        rig.driver.check_laws()
    return rig.driver.digest(), sum(isinstance(event, e.AckIgnored) for event in rig.events)


@pytest.mark.parametrize("seed", range(3))
async def test_f2_late_doubled_and_reordered_frames_leave_right_bytes_and_free_pools(seed: int) -> None:
    _, repeated = await one_run(Chaos(seed=seed, duplicate=0.4, delay=5))
    assert repeated > 0, f"seed {seed}: no report came twice"


# ---- a producer without room


async def test_f1_a_producer_that_is_full_is_told_later_and_nothing_is_lost() -> None:
    """It holds one keep map: the next one waits until a request ends, and everything else goes on."""
    shell = Shell()
    rig = shell.rig
    rig.producer._limit = 1
    with fail_fast():
        async with shell:
            first, second = rig.open("a"), rig.open("b")
            for key in (first, second):
                await shell.upload(key, FIRST)
            fewer = {0: [0, 5], 1: [7]}
            await shell.upload(first, fewer)
            done: list[str] = []

            async def publish() -> None:
                await shell.upload(second, fewer)
                done.append("b")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                await soon(lambda: rig.request(second).upload.phase == "PUBLISHED")
                await shell.upload(first, SECOND)
                await shell.retain(first, SECOND)
                assert not done
                assert rig.producer.keep_map(second) is None
                shell.kv.finish(first)
            assert done == ["b"]
            keep = rig.producer.keep_map(second)
            assert keep is not None
            assert keep.as_lists() == {0: [0, 2], 1: [2]}
