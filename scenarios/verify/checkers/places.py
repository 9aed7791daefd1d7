"""Where a plan may write: vacant areas of the request's own blocks, and blocks that are newly reserved."""

from kvsweep.ledger.ids import RequestKey
from kvsweep.scenarios.verify.checkers.account import LAW, Account
from kvsweep.scenarios.verify.checkers.lives import Ids, flat
from kvsweep.scenarios.verify.checkers.relation import Area, DeviceBlock


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
