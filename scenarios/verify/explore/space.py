"""The states of a world and what follows each: parts are kept once, and what one part does is worked out once.

A state is the number of the coordinator's part, of each rank's, and of what is spent, packed in one integer. The core
looks at its own state and a message only, and a rank at its own and a command only, so the outcome of (part, message)
is remembered: a million states need some ten thousand turns of the core.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger import laws
from kvsweep.ledger.errors import KvsweepError
from kvsweep.ledger.ids import int32_view
from kvsweep.ledger.messages import Acknowledged, Effect, ProcessLost, ProcessStarted, RankWork
from kvsweep.scenarios.verify.explore import situations
from kvsweep.scenarios.verify.explore.byte_laws import Expected, broken, expected
from kvsweep.scenarios.verify.explore.coordinator_state import SENT, CoordinatorState
from kvsweep.scenarios.verify.explore.digest import Parts
from kvsweep.scenarios.verify.explore.loop import Done, Spent, first_coordinator, moves, undrained
from kvsweep.scenarios.verify.explore.messages import forged_reports
from kvsweep.scenarios.verify.explore.rank import Poke, Rank
from kvsweep.scenarios.verify.explore.world import World

BITS = 24
MASK = (1 << BITS) - 1
NOT_KNOWN = -1
FAULTS = (KvsweepError, LookupError, ValueError, TypeError, AttributeError)
"""What production code could raise by mistake; anything that a message makes it raise is a broken law."""


class Next(Struct, frozen=True, gc=False):
    """What a message makes of the coordinator's part; `pokes` is written on every rank."""

    action: str
    coordinator: int
    pokes: int
    progress: bool
    broken: tuple[str, ...]


class Sent(Struct, frozen=True):
    """Commands under way to each rank, and which operations settle."""

    commands: tuple[tuple[RankWork, ...], ...]
    settling: frozenset[int]


class NextRank(Struct, frozen=True, gc=False):
    action: str
    rank: int
    broken: tuple[str, ...] = ()


Successor: TypeAlias = tuple[str, int, bool, tuple[str, ...]]
"""(action, state, whether it is progress, laws that the action itself broke)."""


class Space:
    """States are made on the way. `reached` collects the situations that were met."""

    def __init__(self, world: World, *, exact: bool = False) -> None:
        """exact: tell apart also what only counts, and leave out what only counts up."""
        self.world, self.exact = world, exact
        self.reached: set[str] = set()
        canonical: Callable[[CoordinatorState], object] = (
            CoordinatorState.exact if exact else CoordinatorState.canonical
        )
        self.coordinators = Parts[CoordinatorState](canonical, MASK)
        self.ranks = Parts[Rank](Rank.canonical, MASK)
        self._spent: dict[Spent, int] = {}
        self._spent_of: list[Spent] = []
        self._pokes: dict[tuple[Poke, ...], int] = {(): 0}
        self._pokes_of: list[tuple[Poke, ...]] = [()]
        self._sent: list[int] = []  # by coordinator
        self._sent_of: list[Sent] = []
        self._sent_numbers: dict[Sent, int] = {}
        self._promises: list[int] = []  # by coordinator
        self._promise_of: list[Expected] = []
        self._promise_numbers: dict[Expected, int] = {}
        self._laws: list[tuple[str, ...]] = []
        self._reports: dict[tuple[int, int], tuple[Next, ...]] = {}
        self._loop: dict[tuple[int, int], tuple[tuple[Next, int], ...]] = {}
        self._moves: dict[tuple[int, int, int], tuple[NextRank, ...]] = {}
        self._failures: dict[int, tuple[NextRank, ...]] = {}
        self._restarts: dict[int, NextRank] = {}
        self._learns: dict[tuple[int, int], tuple[Next, ...]] = {}
        self._turns: dict[tuple[int, object], Next | None] = {}
        self._poked: dict[tuple[int, int], int] = {}
        self._kept: dict[tuple[int, int], tuple[str, ...]] = {}
        self._more: dict[tuple[int, str], int | None] = {}
        self._places = tuple(BITS * (world.ranks - at) for at in range(world.ranks))
        self._top = BITS * (world.ranks + 1)

    # ---- states

    def pack(self, coordinator: int, ranks: tuple[int, ...], spent: int) -> int:
        state = spent
        for part in (*ranks, coordinator):
            state = state << BITS | part
        return state

    def unpack(self, state: int) -> tuple[int, tuple[int, ...], int]:
        coordinator, state = state & MASK, state >> BITS
        ranks = []
        for _ in range(self.world.ranks):
            ranks.append(state & MASK)
            state >>= BITS
        return coordinator, tuple(reversed(ranks)), state

    def spent(self, number: int) -> Spent:
        return self._spent_of[number]

    def never_made(self) -> tuple[str, ...]:
        """Calls that no request has come to."""
        made = [max(spent.calls[at] for spent in self._spent_of) for at in range(len(self.world.askers))]
        return tuple(
            f"call {count + 1} of {asker.name} is made"
            for asker, count in zip(self.world.askers, made, strict=True)
            if count < len(asker.calls)
        )

    def first(self) -> int:
        coordinator, _, pokes = first_coordinator(self.world)
        ranks = tuple(self.ranks.number(Rank(self.world, rank).poked(pokes)) for rank in range(self.world.ranks))
        spent = Spent(calls=(0,) * len(self.world.askers))
        return self.pack(self._known(coordinator), ranks, self._number_of(spent))

    def broken(self, state: int) -> tuple[str, ...]:
        """Every law that this state breaks."""
        coordinator, ranks, _ = self.unpack(state)
        found = self._laws[coordinator]
        promise = self._promises[coordinator]
        for rank in ranks:
            kept = self._kept.get((promise, rank))
            if kept is None:
                kept = self._kept[promise, rank] = broken(self._promise_of[promise], self.ranks[rank])
            if kept:
                found = (*found, *kept)
        return found

    def successors(self, state: int) -> Iterator[Successor]:
        """Everything that may happen next and changes something."""
        coordinator, ranks, spent = self.unpack(state)
        sent, faults = self._sent[coordinator], self.world.faults
        more_failures = self._one_more(spent, "failures") if faults.failures else None
        more_restarts = self._one_more(spent, "rank_restarts") if faults.rank_restarts else None
        for at, rank in enumerate(ranks):
            place = self._places[at]
            for move in self._rank_moves(sent, rank, at):
                yield move.action, state + ((move.rank - rank) << place), True, move.broken
            for report in self._report_moves(coordinator, rank):
                yield self._after(state, report, coordinator, ranks)
            if more_failures is not None:
                for move in self._rank_failures(rank):
                    yield move.action, state + ((move.rank - rank) << place) + more_failures, False, ()
            if faults.rank_restarts:
                if more_restarts is not None:
                    move = self._rank_restart(rank)
                    yield move.action, state + ((move.rank - rank) << place) + more_restarts, False, ()
                for heard in self._heard(coordinator, rank):
                    yield self._after(state, heard, coordinator, ranks)
        for change, left in self._loop_moves(coordinator, spent):
            yield self._after(state + ((left - spent) << self._top), change, coordinator, ranks)

    def undrained(self, state: int) -> list[str]:
        """Why a state without anything under way is not quiet."""
        return undrained(self.coordinators[self.unpack(state)[0]])

    def _after(self, state: int, change: Next, coordinator: int, ranks: tuple[int, ...]) -> Successor:
        state += change.coordinator - coordinator
        if change.pokes:
            for at, rank in enumerate(ranks):
                state += (self._poke(rank, change.pokes) - rank) << self._places[at]
        return change.action, state, change.progress, change.broken

    def _one_more(self, spent: int, name: str) -> int | None:
        """What one more of this fault adds to a state; None where the allowance is used up."""
        found = self._more.get((spent, name), NOT_KNOWN)
        if found == NOT_KNOWN:
            used = self._spent_of[spent]
            count, allowed = getattr(used, name), getattr(self.world.faults, name)
            found = None
            if count < allowed:
                found = (self._number_of(replace(used, **{name: count + 1})) - spent) << self._top
            self._more[spent, name] = found
        return found

    # ---- the coordinator's part

    def _known(self, coordinator: CoordinatorState) -> int:
        """The part's number; what it promises and which laws it breaks are worked out the first time."""
        number = self.coordinators.number(coordinator)
        if number == len(self._laws):
            promise = expected(coordinator)
            at = self._promise_numbers.setdefault(promise, len(self._promise_of))
            if at == len(self._promise_of):
                self._promise_of.append(promise)
            self._promises.append(at)
            sent = Sent(self._commands(coordinator.sent), situations.settling_ids(coordinator))
            at = self._sent_numbers.setdefault(sent, len(self._sent_of))
            if at == len(self._sent_of):
                self._sent_of.append(sent)
            self._sent.append(at)
            self._laws.append(())
            self._laws[number] = (*self._lawless(coordinator), *self._forged(coordinator, number))
        return number

    def _commands(self, sent: frozenset[Effect]) -> tuple[tuple[RankWork, ...], ...]:
        works = sorted((work for work in sent if isinstance(work, SENT)), key=repr)
        return tuple(tuple(work for work in works if rank in dict(work.ranks)) for rank in range(self.world.ranks))

    def _lawless(self, coordinator: CoordinatorState) -> list[str]:
        found = laws.check(coordinator.state)
        ownership, layout = coordinator.state.ownership, self.world.layout
        for group, pool in enumerate(coordinator.pools.device.groups):
            held = {block for own in ownership.own.values() for block in int32_view(own[group]).tolist()}
            held |= set(ownership.shared_blocks(layout)[group].tolist())
            if pool.blocks - pool.free != len(held):
                found.append(f"free and held make up the pool: {pool.free} free, {len(held)} held of {pool.blocks}")
        return found

    def _forged(self, coordinator: CoordinatorState, number: int) -> list[str]:
        """Reports that no rank sent change nothing."""
        found = []
        for message in forged_reports(coordinator) if self.world.forged and not self.exact else ():
            try:
                after, turn, _ = coordinator.handles(message)
            except FAULTS as error:
                found.append(f"nothing raises: {type(error).__name__}: {error}")
                continue
            self.reached.update(situations.of_forgery(turn))
            found += after.complaints
            if turn.outcome not in ("refused", "ignored") or self.coordinators.number(after) != number:
                found.append(f"a report that no rank sent changes nothing: {message} was {turn.outcome}")
        return found

    def _turn(
        self,
        number: int,
        what: object,
        action: str,
        take: Callable[[], Done],
        *,
        progress: bool = False,
        honest: bool = False,
        repeats: bool = False,
    ) -> Next | None:
        """One turn of the core; None where nothing changes.

        what    names the message among those that this part may take
        honest  a rank or the producer said it, so it is no error
        repeats  a call under a key that was used for it before
        """
        key = number, what
        if key not in self._turns:
            self._turns[key] = self._new_turn(number, action, take, progress, honest, repeats)
        return self._turns[key]

    def _new_turn(
        self, number: int, action: str, take: Callable[[], Done], progress: bool, honest: bool, repeats: bool
    ) -> Next | None:
        before = self.coordinators[number]
        try:
            after, turn, pokes = take()
        except FAULTS as error:
            return Next(action, number, 0, progress, (f"nothing raises: {type(error).__name__}: {error}",))
        found = list(after.complaints)
        noted = turn is not None and turn.outcome in ("ignored", "repeated", "refused")
        if turn is not None:
            self.reached.update(situations.of_turn(before, turn, after))
            if honest and turn.outcome == "refused":
                found.append(f"an honest report is no error: {turn.refusal}")
            if repeats and (turn.outcome, turn.events, turn.effects) != ("repeated", (), ()):
                found.append(f"a repeated call has its first answer: it was {turn.outcome}")
        if noted and self.exact and not found:
            return None  # it only counts up
        known = self._known(after)
        if noted and known != number:
            found.append(f"what is {turn.outcome if turn else ''} changes nothing")
        if known == number and not found and (noted or not pokes):
            return None  # blocks that a refused plan gives back were free before
        poke = self._pokes.setdefault(pokes, len(self._pokes_of))
        if poke == len(self._pokes_of):
            self._pokes_of.append(pokes)
        return Next(action, known, poke, progress, tuple(found))

    def _report_moves(self, number: int, rank: int) -> tuple[Next, ...]:
        """Every report that this rank ever sent may arrive, now or again."""
        found = self._reports.get((number, rank))
        if found is None:
            before, changes = self.coordinators[number], []
            for report in sorted(self.ranks[rank].said, key=repr):
                action = f"{report.outcome} of #{report.operation.operation_id} arrives from rank {report.rank}"
                changes.append(self._honest(number, report, action, partial(before.handles, report)))
            found = self._reports[number, rank] = tuple(change for change in changes if change is not None)
        return found

    def _heard(self, number: int, rank: int) -> tuple[Next, ...]:
        """The coordinator hears of a process that it does not know, or of the end of the one before."""
        found = self._learns.get((number, rank))
        if found is None:
            part, before = self.ranks[rank], self.coordinators[number]
            pool, changes = before.state.pool, []
            known = pool.process_epoch(part.number)
            if known is not None and known < part.process_epoch:
                started = ProcessStarted(process_epoch=part.process_epoch, rank=part.number)
                action = f"rank {part.number} is heard to have started again"
                changes.append(self._honest(number, started, action, partial(before.handles, started)))
                if self.world.faults.losses_seen and part.number not in pool.lost:
                    lost = ProcessLost(rank=part.number, process_epoch=known)
                    action = f"rank {part.number} is heard to have ended"
                    changes.append(self._honest(number, lost, action, partial(before.handles, lost)))
            found = self._learns[number, rank] = tuple(change for change in changes if change is not None)
        return found

    def _loop_moves(self, number: int, spent: int) -> tuple[tuple[Next, int], ...]:
        """The producer's reports, now or again, and all that the loop and the producer may do."""
        found = self._loop.get((number, spent))
        if found is None:
            before, changes = self.coordinators[number], []
            for operation, epoch in sorted(before.acks, key=repr):
                report = Acknowledged(operation=operation, process_epoch=epoch)
                action = f"the producer acknowledges #{operation.operation_id}"
                change = self._honest(number, report, action, partial(before.handles, report))
                if change is not None:
                    changes.append((change, spent))
            for move in moves(before, self._spent_of[spent]):
                what = move.action, move.which
                change = self._turn(
                    number, what, move.action, move.take,
                    progress=move.progress, honest=move.progress, repeats=move.repeats,
                )  # fmt: skip
                if change is not None:
                    changes.append((change, self._number_of(move.spent)))
            found = self._loop[number, spent] = tuple(changes)
        return found

    def _honest(self, number: int, what: object, action: str, take: Callable[[], Done]) -> Next | None:
        return self._turn(number, what, action, take, progress=True, honest=True)

    def _number_of(self, spent: Spent) -> int:
        number = self._spent.setdefault(spent, len(self._spent_of))
        if number == len(self._spent_of):
            self._spent_of.append(spent)
        return number

    # ---- a rank's part

    def _rank_moves(self, sent: int, rank: int, at: int) -> tuple[NextRank, ...]:
        found = self._moves.get((sent, rank, at))
        if found is None:
            part, changes = self.ranks[rank], []
            for work in self._sent_of[sent].commands[at]:
                action = f"rank {at} receives {type(work).__name__.lower()} #{work.operation.operation_id}"
                try:
                    after = part.receives(work)
                except FAULTS as error:
                    changes.append(NextRank(action, rank, (f"nothing raises: {type(error).__name__}: {error}",)))
                    continue
                self.reached.update(situations.of_delivery(part, work, after))
                changes.append(NextRank(action, self.ranks.number(after)))
            for number in part.device.queued:
                if number in self._sent_of[sent].settling:
                    self.reached.add("copies run after the abort")
                changes.append(NextRank(f"rank {at} runs #{number}", self.ranks.number(part.runs(number))))
            found = self._moves[sent, rank, at] = tuple(one for one in changes if one.rank != rank or one.broken)
        return found

    def _rank_failures(self, rank: int) -> tuple[NextRank, ...]:
        found = self._failures.get(rank)
        if found is None:
            part = self.ranks[rank]
            found = self._failures[rank] = tuple(
                NextRank(f"#{number} fails on rank {part.number}", self.ranks.number(part.fails(number)))
                for number in part.device.queued
            )
        return found

    def _rank_restart(self, rank: int) -> NextRank:
        found = self._restarts.get(rank)
        if found is None:
            part = self.ranks[rank]
            found = NextRank(f"rank {part.number} restarts", self.ranks.number(part.restarts()))
            self._restarts[rank] = found
        return found

    def _poke(self, rank: int, pokes: int) -> int:
        found = self._poked.get((rank, pokes))
        if found is None:
            found = self._poked[rank, pokes] = self.ranks.number(self.ranks[rank].poked(self._pokes_of[pokes]))
        return found
