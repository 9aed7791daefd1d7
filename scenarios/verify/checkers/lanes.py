"""Operations in the ownership oracle: what a plan takes and may write, what a commit and what settling lets go."""

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import HOLE, RequestKey
from kvsweep.scenarios.verify.checkers.account import LAW, Account, areas_of, joined
from kvsweep.scenarios.verify.checkers.lives import Attempt, Ids, Life, Table, flat, lists
from kvsweep.scenarios.verify.checkers.relation import Area, CpuBlock, DeviceBlock, Holder, Resource, TableRow


def check_areas(account: Account, key: RequestKey, areas: Ids, reserved: tuple[bytes, ...]) -> None:
    """Every destination is vacant, the request's own, not shared, and handed out once; the new blocks were needed."""
    new = {DeviceBlock(group, block) for group, blocks in enumerate(reserved) for block in flat(blocks)}
    if sum(len(flat(blocks)) for blocks in reserved) != len(new):
        account.add(LAW, "a plan reserves a block twice")
    owned = {block for block, owner in account.reserved_by.items() if owner == key}
    account.take_new(key, sorted(new))
    used: set[DeviceBlock] = set()
    for layer, blocks in areas.items():
        for block in blocks:
            area, whole = Area(layer, block), DeviceBlock(account.relation.group_of_layer[layer], block)
            used.add(whole)
            if blocks.count(block) > 1:
                account.add(LAW, f"{area} is handed out twice in one plan")
            for holder in sorted(account.relation.holders(area)):
                account.add(LAW, f"{area} is handed out to {key.request_id} while held by {holder}")
            if whole in account.shared:
                account.add(LAW, f"{area} is handed out and its block is shared")
            elif account.reserved_by.get(whole) != key:
                account.add(LAW, f"{area} is handed out to {key.request_id}, which has not reserved its block")
    for unused in sorted(new - used):
        account.add(LAW, f"{unused} is reserved and the plan puts nothing there")
    _check_need(account, areas, owned, new & used)


def _check_need(account: Account, areas: Ids, owned: set[DeviceBlock], new: set[DeviceBlock]) -> None:
    """A group's new blocks were needed: some layer has used every vacant area of the blocks it had.

    Where all layers share one table, a block is of use only where every layer's area is vacant.
    """
    for group in sorted({block.group for block in new}):
        layers = [layer for layer, of in account.relation.group_of_layer.items() if of == group]
        shared_table = len({tuple(areas.get(layer, [])) for layer in layers}) == 1
        had = [block for block in owned if block.group == group]
        vacant = {
            layer: {block.block for block in had if not account.relation.holders(Area(layer, block.block))}
            - set(areas.get(layer, []))
            for layer in layers
            if areas.get(layer)
        }
        left = [set.intersection(*vacant.values())] if shared_table and vacant else list(vacant.values())
        if left and all(left):
            account.add(LAW, f"group {group}: new blocks are reserved while every layer has vacant areas")


def planned_upload(account: Account, life: Life, event: e.UploadPlanned) -> None:
    number = event.operation.operation_id
    life.attempts[number] = Attempt(
        event.operation,
        "upload",
        replaces=life.current,
        full=event.kind == "full",
        planned=lists(event.logical),
    )


def published_keep_map(account: Account, life: Life, event: e.KeepMapPublished) -> None:
    life.attempts[event.operation.operation_id] = Attempt(event.operation, "upload", replaces=life.current)


def staged(account: Account, life: Life, event: e.UploadStaged) -> None:
    attempt = account.attempt(life, event, "UploadStaged")
    account.take_row(life.key, event.row)
    attempt.generation, attempt.row = event.generation, event.row


def leased(account: Account, life: Life, event: e.BlocksLeased) -> None:
    attempt = account.attempt(life, event, "BlocksLeased")
    destination, sources, copies = lists(event.destination), lists(event.source), flat(event.copies)
    check_areas(account, life.key, destination, event.reserved)
    full, total = (account.run.cpu_full_blocks, account.run.cpu_total_blocks) if account.run else (0, 0)
    account.take_cpu(life.key, copies, full, total)
    for layer, ids in sources.items():
        wanted = attempt.planned.get(layer, [])
        right = [life.sources.get(logical, HOLE) for logical in wanted]
        if not copies and ids != right:
            account.add(LAW, f"layer {layer}: sources {ids} are not the request's own CPU blocks {right} of {wanted}")
        if copies and not set(ids) <= set(copies):
            account.add(LAW, f"layer {layer}: sources {ids} are not copies of this plan {copies}")
    base = None if attempt.full else life.tables.get(attempt.replaces)
    adopted = account.adopted_areas(life, lists(event.adopted))
    attempt.table = Table(
        joined(base.logical if base else {}, lists(event.adopted), attempt.planned),
        joined(base.physical if base else {}, adopted, destination),
        attempt.row,
    )
    number = event.operation.operation_id
    account.relation.put(Holder(life.key, "dst", number), [*areas_of(destination), TableRow(life.key, attempt.row)])
    cpu = {*copies, *(block for ids in sources.values() for block in ids)}
    account.relation.put(Holder(life.key, "src", number), [*areas_of(adopted), *map(CpuBlock, sorted(cpu))])


def planned_retain(account: Account, life: Life, event: e.RetainPlanned) -> None:
    moved_from, moved_to = lists(event.moved_from), lists(event.moved_to)
    check_areas(account, life.key, moved_to, event.reserved)
    account.take_row(life.key, event.row)
    base = life.table
    logical: Ids = {}
    physical: Ids = {}
    for layer, slots in lists(event.keep).items():
        held = base.slots(layer) if base else []
        if any(not 0 <= slot < len(held) for slot in slots):
            account.add(LAW, f"layer {layer}: keep slots {slots} are not all among {len(held)}")
            slots = [slot for slot in slots if 0 <= slot < len(held)]
        logical[layer] = [held[slot][0] for slot in slots]
        physical[layer] = [held[slot][1] for slot in slots]
    adopted = account.adopted_areas(life, lists(event.adopted))
    physical = joined(physical, adopted)
    for layer, old in moved_from.items():
        swap = dict(zip(old, moved_to.get(layer, []), strict=False))
        physical[layer] = [swap.get(block, block) for block in physical.get(layer, [])]
    attempt = Attempt(event.operation, "retain", generation=event.generation, replaces=life.current)
    attempt.table = Table(joined(logical, lists(event.adopted)), physical, event.row)
    number = event.operation.operation_id
    life.attempts[number] = attempt
    account.relation.put(Holder(life.key, "dst", number), [*areas_of(moved_to), TableRow(life.key, event.row)])
    account.relation.put(Holder(life.key, "src", number), areas_of(adopted))


def started_store(account: Account, life: Life, event: e.StoreStarted) -> None:
    stored = dict(zip(flat(event.logical), flat(event.source), strict=False))
    account.take_cpu(life.key, stored.values(), 0, account.run.cpu_full_blocks if account.run else 0)
    areas: list[Resource] = []
    for logical in stored:
        block = life.tail.get(logical)
        if block is None or block.phase != "dirty":
            account.add(LAW, f"block {logical} is stored and not a sealed, dirty tail block")
        else:
            areas += account.whole_blocks(block.physical.items())
    number = event.operation.operation_id
    life.attempts[number] = Attempt(event.operation, "store", ranks=dict(event.ranks), stored=stored)
    account.relation.put(Holder(life.key, "src", number), areas)
    account.relation.put(Holder(life.key, "dst", number), map(CpuBlock, sorted(stored.values())))


def sent(account: Account, life: Life, event: e.TransferStarted | e.ReadersDrained) -> None:
    account.attempt(life, event, type(event).__name__).ranks = dict(event.ranks)


def reported(account: Account, life: Life, event: e.RankTransferred | e.TablesApplied | e.RankStored) -> None:
    account.attempt(life, event, type(event).__name__).reports[event.rank] = "completed"


def committed(account: Account, life: Life, event: e.ResidencyCommitted | e.OwnersCommitted) -> None:
    attempt = account.attempt(life, event, type(event).__name__)
    if attempt.table is None or event.generation in life.tables or event.generation != attempt.generation:
        account.add(LAW, f"generation {event.generation} is committed and was not planned, or exists")
        return
    if attempt.replaces != life.current or life.life != "RUNNING":
        account.add(LAW, f"generation {event.generation} builds on {attempt.replaces}, current is {life.current}")
    table = attempt.table
    view = Holder(life.key, "view", event.generation)
    account.relation.put(view, [*areas_of(table.physical), TableRow(life.key, table.row)])
    number = event.operation.operation_id
    account.let_go(Holder(life.key, "dst", number))
    account.let_go(Holder(life.key, "src", number))
    life.tables[event.generation], life.current = table, event.generation


def acknowledged(account: Account, life: Life, event: e.UploadAcknowledged | e.RetainAcknowledged) -> None:
    account.release(life, account.attempt(life, event, type(event).__name__))


def completed_store(account: Account, life: Life, event: e.StoreCompleted) -> None:
    attempt = account.attempt(life, event, "StoreCompleted")
    life.sources |= attempt.stored
    for logical in attempt.stored:
        life.stale.pop(logical, None)
        if logical in life.tail:
            life.tail[logical].phase = "clean"
    account.own_sources(life)
    account.release(life, attempt)


def aborted(account: Account, life: Life, event: e.UploadAborted | e.RetainAborted | e.StoreAborted) -> None:
    attempt = account.attempt(life, event, type(event).__name__)
    if attempt.generation and attempt.generation in life.tables:
        account.add(LAW, f"{event.operation} is aborted after its commit")
    attempt.settling = True
    if attempt.quiet:
        account.release(life, attempt)


def settled(account: Account, life: Life, event: e.TransferSettled) -> None:
    attempt = account.attempt(life, event, "TransferSettled")
    if not attempt.settling or event.rank in attempt.reports:
        account.add(LAW, f"rank {event.rank} settles {event.operation}, which does not wait for it")
    attempt.reports[event.rank] = event.outcome
    if attempt.settling and attempt.quiet:
        account.release(life, attempt)
