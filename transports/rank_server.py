"""`serve_rank`: one rank's side of a link. Commands in, reports out; a report is repeated until it is heard."""

import anyio
import anyio.lowlevel

from kvsweep.ledger.errors import Busy
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Forget, Heard, ProcessStarted, RankWork
from kvsweep.transports.device import ServedDevice
from kvsweep.transports.links import Delivery, RankLink
from kvsweep.transports.rank import RankWorker
from kvsweep.transports.wire import BadFrame, decode_to_rank, encode

PROBE_TURNS = 64
"""Idle turns after which a lossy link is asked to carry the unheard reports again."""


class _Wake:
    def __init__(self) -> None:
        self.event = anyio.Event()

    def set(self) -> None:
        self.event.set()

    async def wait(self) -> None:
        await self.event.wait()
        self.event = anyio.Event()


async def serve_rank(worker: RankWorker, device: ServedDevice, link: RankLink) -> None:
    """Serve until the link ends. Announces the process epoch first.

    A frame that cannot be read, and a command for which there is no room, is noted and passed over: to the
    coordinator it is a rank that does not answer. The device advances one step a turn; where it is lost,
    DeviceLost ends the rank's process, which is what settles its operations.
    """
    wake = _Wake()
    async with anyio.create_task_group() as tasks:
        forgotten: set[RequestKey] = set()
        try:
            await link.send(encode(ProcessStarted(rank=worker.rank, process_epoch=worker.process_epoch)))
            tasks.start_soon(_work, worker, device, link, wake)
            while True:
                try:
                    message = decode_to_rank(await link.receive())
                except BadFrame as error:
                    worker.note_frame(str(error))
                    continue
                if isinstance(message, Heard):
                    worker.acknowledge(message.operation_id)
                elif isinstance(message, Forget):
                    forgotten.add(message.request)
                else:
                    _perform(worker, message)
                forgotten = {request for request in forgotten if not device.try_forget(request)}
                wake.set()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            tasks.cancel_scope.cancel()


def _perform(worker: RankWorker, work: RankWork) -> None:
    try:
        worker.perform([work])
    except Busy as error:
        worker.note_frame(f"{type(work).__name__} {work.operation.operation_id} refused: {error}")


async def _work(worker: RankWorker, device: ServedDevice, link: RankLink, wake: _Wake) -> None:
    idle = 0
    try:
        while True:
            moved = device.advance(1) > 0
            reports = worker.poll()
            for report in reports:
                await link.send(encode(report))
            if moved or reports:
                idle = 0
                await anyio.lowlevel.checkpoint()
            elif link.delivery is Delivery.LOSSY and worker.unheard:
                idle += 1
                if idle % PROBE_TURNS == 0:
                    worker.probe()
                await anyio.lowlevel.checkpoint()
            elif device.queued:
                await anyio.lowlevel.checkpoint()  # held back by a fault: it may be let go any turn
            else:
                await wake.wait()
    except anyio.BrokenResourceError:
        return
