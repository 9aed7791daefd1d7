"""One block of the device pool through a ledger: who owned it, who held its areas, and what was written to it."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from kvsweep.ledger import events as e
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.inspect.block_watch import Hold, Owner, Watch, Write
from kvsweep.ledger.inspect.earlier import Fact
from kvsweep.ledger.inspect.lives import begin, bound, fold_from, sharers, start
from kvsweep.ledger.store.log import LogStore, Position
from kvsweep.ledger.store.query import RESERVES, Block, Where, reserves

LIVES_FOLDED: Final = 8
EVENTS_FOLDED: Final = 20_000
"""How much of a long ledger one answer looks into; earlier times of ownership are counted."""


class BlockLife(Struct, frozen=True, kw_only=True):
    """Everything in the order of positions, per layer where it differs.

    `left_out` times of ownership, the earliest, belong to lives that were not looked into.
    """

    group: int
    block: int
    layers: tuple[int, ...]  # of the group: the block has an area in each
    until: Position
    owners: tuple[Owner, ...]
    holds: tuple[Hold, ...]
    writes: tuple[Write, ...]
    events: tuple[Fact, ...]  # those that changed who holds it, and the words on its operations in between
    left_out: int

    def at(self, position: Position) -> tuple[Hold, ...]:
        """Who held which area just after a position."""
        return tuple(
            hold for hold in self.holds if hold.since <= position and (hold.until is None or hold.until > position)
        )


def run_of(log: LogStore) -> e.RunConfigured:
    """The run's configuration. Raises LayoutError for a ledger that does not begin with one."""
    state, _ = begin(log, 0)
    if state.pool.run is not None:  # the first events were dropped
        return state.pool.run
    for record in log.find(Where(types=("RunConfigured",), until=1)):
        if isinstance(record.event, e.RunConfigured):
            return record.event
    raise LayoutError("ledger", "RunConfigured as its first event", "none")


def expect_in_pool(run: e.RunConfigured, block: Block) -> None:
    """Raise LayoutError for a block that the run's pool does not have."""
    sizes = run.device_blocks
    if not (0 <= block.group < len(sizes) and 0 <= block.block < sizes[block.group]):
        pools = ", ".join(f"{group}:0 to {group}:{size - 1}" for group, size in enumerate(sizes))
        raise LayoutError("block", f"GROUP:ID within {pools}", f"{block.group}:{block.block}")


def why_block(
    log: LogStore,
    block: Block,
    *,
    until: Position | None = None,
    lives: int = LIVES_FOLDED,
    events: int = EVENTS_FOLDED,
) -> BlockLife:
    """The life of one block up to position `until`, or to the end.

    Looks into its latest owners: into at most `lives` lives, and into no further one once `events` events have been
    folded. Lives that share a prefix count as one. Raises LayoutError for a block that the pool does not have and for
    a position beyond the end.
    """
    run = run_of(log)
    expect_in_pool(run, block)
    end = bound(log, until)
    reserved = list(_reservations(log, block, run, end))
    watch, folded = Watch(block, run.layout), set[RequestKey]()
    for together, since, upper in _folds(log, reserved, lives, end):
        if watch.events_seen >= events:
            break
        begun = start(log, together, until=upper, since=since, sharing=POOL in together)
        watch.begin(begun.position, begun.state)
        for frame in fold_from(log, begun, until=upper):
            watch.see(frame)
        folded.update(together)
    return BlockLife(
        group=block.group,
        block=block.block,
        layers=run.layout.group_layers(block.group),
        until=end,
        owners=watch.owners(),
        holds=watch.holds(),
        writes=watch.writes(),
        events=watch.facts(),
        left_out=sum(life not in folded for _, life in reserved),
    )


def _reservations(
    log: LogStore, block: Block, run: e.RunConfigured, end: Position
) -> Iterator[tuple[Position, RequestKey]]:
    """(position, life) of every reservation of the block that is kept, and who held it where the ledger begins: the
    pool, too, if it is shared."""
    state, begun = begin(log, 0)
    layers = run.layout.group_layers(block.group)
    for life, holders in state.ownership.held.items():
        if any(
            block.block in ids
            for holding in holders.values()
            for layer, ids in holding.areas.items()
            if layer in layers
        ):
            yield begun, life
    for record in log.find(Where(types=RESERVES, block=block, until=end)):
        if reserves(record.event, run.layout, block):
            yield record.position, record.event.request


def _folds(
    log: LogStore, reserved: Sequence[tuple[Position, RequestKey]], lives: int, end: Position
) -> Iterator[tuple[tuple[RequestKey, ...], Position, Position]]:
    """(lives to fold together, since where, up to where), the latest owners first.

    Nobody else has the block while one owns it; a shared one is followed to the end.
    """
    newest = list(dict.fromkeys(life for _, life in reversed(reserved)))
    sharing = {POOL, *sharers(log, until=end)} if newest else set()
    together = tuple(life for life in newest if life in sharing)
    taken = 0
    for life in newest:
        if taken == lives:
            return
        if life in sharing and life != together[0]:
            continue
        taken += 1
        group = together if life in sharing else (life,)
        own = [position for position, of in reserved if of in group]
        others = (position - 1 for position, of in reserved if position > own[-1] and of not in group)
        yield group, max(own[0] - 1, 0), end if life in sharing else min(others, default=end)
