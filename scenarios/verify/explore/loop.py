"""What the serving loop and the producer may do next in a state: calls, steps, lives, restarts of the producer."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.events import LaneName
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Abort, Command, Finish, OpenRequest, Preempt, ProcessStarted, Resume, Turn
from kvsweep.ledger.phases import ABORTABLE
from kvsweep.ledger.state import RequestState
from kvsweep.scenarios.verify.explore.coordinator_state import CoordinatorState, Oracles
from kvsweep.scenarios.verify.explore.messages import first_registration, message_of, registration_again
from kvsweep.scenarios.verify.explore.rank import Poke
from kvsweep.scenarios.verify.explore.world import Asker, World

LANES: tuple[LaneName, ...] = ("upload", "retain", "store")
Done: TypeAlias = tuple[CoordinatorState, Turn | None, tuple[Poke, ...]]
"""The coordinator afterwards, the turn it took (a step that begins takes none), what it makes others write."""


class Spent(Struct, frozen=True, kw_only=True):
    """How far each request's calls have come, and how much of each allowance is used up."""

    calls: tuple[int, ...]
    aborts: int = 0
    failures: int = 0
    preemptions: int = 0
    finishes: int = 0
    reopenings: int = 0
    repetitions: int = 0
    rank_restarts: int = 0
    producer_restarts: int = 0
    steps: int = 0


class Move(Struct, frozen=True):
    """One thing that may happen; `spent` is what is used up then, if it changed anything."""

    action: str
    take: Callable[[], Done]
    spent: Spent
    which: int = 0  # tells moves of one name apart
    repeats: bool = False  # a call that was answered before
    progress: bool = False  # no new work and no fault: what is under way comes nearer to its end


def moves(coordinator: CoordinatorState, spent: Spent) -> Iterator[Move]:
    """Everything that the loop and the producer may do, whatever the ranks hold."""
    world = coordinator.world
    for at, asker in enumerate(world.askers):
        yield from _calls(coordinator, spent, at, asker)
        if world.keyed:
            yield from _calls_again(coordinator, spent, at, asker)
        yield from _life(coordinator, spent, at, asker)
        request = coordinator.request(asker.name)
        again = registration_again(request) if request.life in ("RUNNING", "PREEMPTED") else None
        if again is not None:
            yield _message(coordinator, f"the producer registers the blocks of {asker.name} again", again, spent)
    yield from _steps(coordinator, spent)
    if spent.producer_restarts < world.faults.producer_restarts:
        epoch = coordinator.state.pool.producer_epoch + 1
        used = replace(spent, producer_restarts=spent.producer_restarts + 1)
        yield _message(coordinator, "the producer restarts", ProcessStarted(process_epoch=epoch), used)


def _message(coordinator: CoordinatorState, action: str, message: Command | ProcessStarted, spent: Spent) -> Move:
    return Move(action, partial(coordinator.handles, message), spent)


def _calls(coordinator: CoordinatorState, spent: Spent, at: int, asker: Asker) -> Iterator[Move]:
    if coordinator.request(asker.name).life not in ("RUNNING", "PREEMPTED"):
        return
    position = spent.calls[at]
    if position < len(asker.calls):
        ask = asker.calls[position]
        message = message_of(coordinator, asker.name, ask, position)
        if message is not None:
            used = replace(spent, calls=(*spent.calls[:at], position + 1, *spent.calls[at + 1 :]))
            yield _message(coordinator, _asks(asker, ask.do, ask.want), message, used)
    if position and spent.repetitions < coordinator.world.faults.repetitions:
        ask = asker.calls[position - 1]
        message = message_of(coordinator, asker.name, ask, position - 1)
        if message is not None:
            used = replace(spent, repetitions=spent.repetitions + 1)
            action = f"{_asks(asker, ask.do, ask.want)} again"
            yield _message(coordinator, action, message, used)


def _calls_again(coordinator: CoordinatorState, spent: Spent, at: int, asker: Asker) -> Iterator[Move]:
    """A caller that did not hear the answer asks once more, under the key of the first time."""
    if coordinator.request(asker.name).life in ("RUNNING", "PREEMPTED"):
        for position, ask in enumerate(asker.calls[: spent.calls[at]]):
            message = message_of(coordinator, asker.name, ask, position)
            if ask.do == "select" and message is not None:
                action = f"{asker.name} repeats call {position + 1}"
                yield Move(action, partial(coordinator.handles, message), spent, repeats=True)


def _asks(asker: Asker, what: str, want: tuple[tuple[int, ...], ...]) -> str:
    return f"{asker.name} asks: {what}{f' {[list(row) for row in want]}' if want else ''}"


def _life(coordinator: CoordinatorState, spent: Spent, at: int, asker: Asker) -> Iterator[Move]:
    request, faults, name = coordinator.request(asker.name), coordinator.world.faults, asker.name
    if spent.aborts < faults.aborts:
        used = replace(spent, aborts=spent.aborts + 1)
        for lane in LANES:
            opened = request.lane(lane).open
            if opened is not None and request.lane(lane).phase in ABORTABLE[lane]:
                message = Abort(operation=opened.operation, reason="asked for")
                yield _message(coordinator, f"#{opened.operation.operation_id} is aborted", message, used)
    if request.life == "RUNNING" and spent.preemptions < faults.preemptions:
        used = replace(spent, preemptions=spent.preemptions + 1)
        yield _message(coordinator, f"{name} is preempted", Preempt(request=request.key), used)
    if request.life == "PREEMPTED":
        yield _message(coordinator, f"{name} is resumed", Resume(request=request.key), spent)
    if request.life in ("RUNNING", "PREEMPTED") and spent.finishes < faults.finishes:
        used = replace(spent, finishes=spent.finishes + 1)
        yield _message(coordinator, f"{name} finishes", Finish(request=request.key), used)
    if request.life == "CLOSED" and spent.reopenings < faults.reopenings:
        calls = (*spent.calls[:at], 0, *spent.calls[at + 1 :])
        used = replace(spent, calls=calls, reopenings=spent.reopenings + 1)
        yield Move(f"{name} is opened anew", partial(opened_with_blocks, coordinator, asker), used)


def opened_with_blocks(coordinator: CoordinatorState, asker: Asker) -> Done:
    """A life begins and the producer registers its blocks."""
    opened, turn, pokes = coordinator.handles(OpenRequest(request_id=asker.name))
    if turn.outcome != "accepted" or not asker.blocks:
        return opened, turn, pokes
    registered, _, more = opened.handles(first_registration(opened, asker.name, asker.blocks))
    return registered, turn, (*pokes, *more)


def _steps(coordinator: CoordinatorState, spent: Spent) -> Iterator[Move]:
    world = coordinator.world
    if spent.steps < world.steps and len(coordinator.reads) < world.open_steps:
        used = replace(spent, steps=spent.steps + 1)
        for request in coordinator.state.requests.values():
            if request.life == "RUNNING" and (request.current or request.tail) and not coordinator.state.pool.lost:
                yield Move(
                    f"a step begins on {request.key.request_id}, generation {request.current}",
                    _begin(coordinator, request.key),
                    used,
                )
    ended: set[object] = set()
    for number, reads in coordinator.reads.items():
        same = (reads, repr(coordinator.core.steps.described()[number][1]))
        if same not in ended:
            ended.add(same)
            what = ", ".join(f"{cells.request.request_id}, generation {cells.generation}" for cells in reads.requests)
            yield Move(f"a step on {what} ends", _end(coordinator, number), spent, number, progress=True)


def _begin(coordinator: CoordinatorState, key: RequestKey) -> Callable[[], Done]:
    def take() -> Done:
        try:
            return coordinator.begins_step((key,)), None, ()
        except Refused:
            return coordinator, None, ()

    return take


def _end(coordinator: CoordinatorState, number: int) -> Callable[[], Done]:
    return partial(coordinator.ends_step, number)


def undrained(coordinator: CoordinatorState) -> list[str]:
    """Why a state in which nothing is under way is not quiet."""
    oracles = Oracles(coordinator.books)
    oracles.rests()
    found = [*coordinator.core.pending(), *oracles.complaints()]
    requests: list[RequestState] = list(coordinator.state.requests.values())
    found += [f"{one.key.request_id} has finished and is not closed" for one in requests if one.life == "FINISHING"]
    return found + [f"rank {rank} is lost" for rank in coordinator.state.pool.lost]


def first_coordinator(world: World) -> Done:
    """Every request is opened and its blocks are registered."""
    coordinator, turn = CoordinatorState(world), None
    pokes: list[Poke] = []
    for asker in world.askers:
        coordinator, turn, more = opened_with_blocks(coordinator, asker)
        pokes += more
    return coordinator, turn, tuple(pokes)
