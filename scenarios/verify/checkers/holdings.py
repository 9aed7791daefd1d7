"""Lives, tails, sources and shared blocks in the ownership oracle."""

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, POOL
from kvsweep.scenarios.verify.checkers.account import LAW, Account, named
from kvsweep.scenarios.verify.checkers.lives import Life, TailBlock, flat
from kvsweep.scenarios.verify.checkers.relation import CpuBlock, DeviceBlock, Holder, Resource


def preempted(account: Account, life: Life, event: e.RequestPreempted) -> None:
    life.life, life.current = "PREEMPTED", 0


def resumed(account: Account, life: Life, event: e.RequestResumed) -> None:
    life.life = "RUNNING"


def finished(account: Account, life: Life, event: e.RequestFinished) -> None:
    life.life, life.current = "FINISHING", 0
    life.sources, life.stale = {}, {}
    account.let_go(Holder(life.key, "owner"))


def closed(account: Account, life: Life, event: e.RequestClosed) -> None:
    for holder in account.relation.all_holders:
        if holder.request == life.key:
            account.add(LAW, f"{life.key.request_id} is closed and {holder} holds resources")
    owned = {block for block, key in account.reserved_by.items() if key == life.key}
    if owned:
        account.add(LAW, f"{life.key.request_id} is closed and has reserved {named(owned)}")
    del account.lives[life.key]


def retired(account: Account, life: Life, event: e.BlocksRetired) -> None:
    if event.generation == 0:
        account.said_free("BlocksRetired", event.freed, set())
        return
    if event.generation == life.current:
        account.add(LAW, f"generation {event.generation} of {life.key.request_id} is retired while it is current")
    for step, handed in account.steps.items():
        if life.key in handed and handed[life.key].generation == event.generation:
            account.add(LAW, f"generation {event.generation} is retired while step {step} reads it")
    life.tables.pop(event.generation, None)
    freed = account.let_go(Holder(life.key, "view", event.generation))
    account.said_free("BlocksRetired", event.freed, freed)


def opened_tail(account: Account, life: Life, event: e.TailOpened) -> None:
    physical = dict(enumerate(flat(event.physical_by_group)))
    account.take_new(life.key, physical.items())
    if event.logical in life.tail:
        account.add(LAW, f"tail block {event.logical} is opened twice")
    life.tail[event.logical] = TailBlock(physical)
    for group, block in physical.items():
        account.relation.put(Holder(life.key, "tail", event.logical, group), account.whole_blocks([(group, block)]))


def sealed(account: Account, life: Life, event: e.TailSealed) -> None:
    if event.logical in life.tail:
        life.tail[event.logical].phase = "dirty"


def lost(account: Account, life: Life, event: e.BlockLost) -> None:
    if event.logical in life.tail:
        life.tail[event.logical].phase = "lost"


def dropped(account: Account, life: Life, event: e.TailDropped) -> None:
    areas: list[Resource] = []
    left = flat(event.logical)
    for logical in left:
        block = life.tail.get(logical)
        if block is None or event.group not in block.physical:
            account.add(LAW, f"tail block {logical} leaves group {event.group} twice")
            continue
        if block.phase not in ("clean", "lost") and life.life != "FINISHING":
            account.add(LAW, f"tail block {logical} leaves while it is {block.phase}: neither stored nor declared lost")
        areas += account.whole_blocks([(event.group, block.physical.pop(event.group))])
    account.relation.put(Holder(life.key, "fence", event.fence), areas)
    for logical in left:
        account.let_go(Holder(life.key, "tail", logical, event.group))
        if logical in life.tail and not life.tail[logical].physical:
            del life.tail[logical]
    life.fences[event.fence] = frozenset(step for step, handed in account.steps.items() if life.key in handed)


def fence_opened(account: Account, life: Life, event: e.FenceOpened) -> None:
    waits = life.fences.pop(event.fence, None)
    if waits is None:
        account.add(LAW, f"fence {event.fence} opens twice")
    for step in sorted(account.steps.keys() & (waits or frozenset())):
        account.add(LAW, f"fence {event.fence} opens while step {step} may touch its blocks")
    account.said_free("FenceOpened", event.freed, account.let_go(Holder(life.key, "fence", event.fence)))


def registered(account: Account, life: Life, event: e.SourcesRegistered) -> None:
    named = dict(zip(flat(event.logical), flat(event.source), strict=False))
    own = [block for logical, block in named.items() if life.stale.get(logical) == block]
    account.take_cpu(life.key, named.values(), 0, account.run.cpu_full_blocks if account.run else 0, own)
    for logical in named:
        life.stale.pop(logical, None)
    life.sources |= named
    account.own_sources(life)


def published_prefix(account: Account, life: Life, event: e.PrefixPublished) -> None:
    block = life.tail.get(event.logical)
    if block is None or block.phase != "clean" or set(block.physical) != set(account.layers_of_group):
        account.add(LAW, f"block {event.logical} is shared and not a clean tail block, whole in every group")
        return
    source = life.sources.get(event.logical, HOLE)
    account.prefixes[event.number] = (event.logical, dict(block.physical), source)
    holder = Holder(POOL, "prefix", event.number)
    account.relation.put(holder, [*account.whole_blocks(block.physical.items()), CpuBlock(source)])
    for group, number in block.physical.items():
        shared = DeviceBlock(group, number)
        if account.reserved_by.pop(shared, None) != life.key:
            account.add(LAW, f"{shared} is shared by {life.key.request_id}, which has not reserved it")
        account.shared.add(shared)


def attached(account: Account, life: Life, event: e.PrefixAttached) -> None:
    prefix = account.prefixes.get(event.number)
    if prefix is None or prefix[0] != event.logical:
        account.add(LAW, f"prefix {event.number} is attached and does not hold block {event.logical}")
        return
    _, physical, source = prefix
    life.tail[event.logical] = TailBlock(dict(physical), "clean")
    for group, block in physical.items():
        account.relation.put(Holder(life.key, "tail", event.logical, group), account.whole_blocks([(group, block)]))
    life.sources[event.logical] = source
    life.stale.pop(event.logical, None)
    account.own_sources(life)


def evicted(account: Account, event: e.PrefixEvicted) -> None:
    if account.prefixes.pop(event.number, None) is None:
        account.add(LAW, f"prefix {event.number} is evicted twice")
    freed = account.let_go(Holder(POOL, "prefix", event.number))
    account.said_free("PrefixEvicted", event.freed, freed)


def producer_restarted(account: Account, event: e.ProducerRestarted) -> None:
    for life in account.lives.values():
        life.stale |= life.sources
        life.sources = {}
