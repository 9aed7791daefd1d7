"""Events and states as plain data: dicts, lists, strings and numbers, for people, JSON and tests."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, RequestKey, Rows, int32_view
from kvsweep.ledger.state import RequestState, State

Builtins: TypeAlias = dict[str, Any]


def to_builtins(value: object) -> Any:
    """Rows become {layer: ids}, id bytes become lists of ids, structs become dicts by field name."""
    if isinstance(value, Rows):
        return {str(layer): ids for layer, ids in value.as_lists().items()}
    if isinstance(value, bytes):
        return int32_view(value).tolist()
    if isinstance(value, Struct):
        return {name: to_builtins(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [to_builtins(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_builtins(item) for key, item in value.items()}
    return value


def event_to_builtins(event: Event) -> Builtins:
    """An event by its field names, its type first."""
    return {"type": type(event).__name__, **to_builtins(event)}


def named(request: RequestKey) -> str:
    """A request for people: the whole id, quoted where it holds what a terminal would not print, and its epoch."""
    name = request.request_id
    return f"{name if name and name.isprintable() else repr(name)} #{request.request_epoch}"


class Figures(Struct, frozen=True, kw_only=True):
    """One life of one request at one position, in a few numbers. Slots and areas are counted in blocks of one layer."""

    request_id: str
    request_epoch: int
    life: str
    upload: str
    retain: str
    store: str
    map_revision: int
    generation: int  # of the current view; 0 = none
    views: list[int]  # generations held, current and draining
    view_slots: dict[str, int]  # layer -> slots of the current view
    tail: dict[str, str]  # logical block -> phase
    settling: list[int]  # operation ids
    fences: list[int]
    held_areas: int
    held_rows: list[int]
    held_sources: int
    owned_blocks: list[int]  # a group


def figures(state: State, request: RequestState) -> Figures:
    """Count what one request is and holds."""
    view = request.view
    holdings = state.ownership.holders(request.key).values()
    return Figures(
        request_id=request.key.request_id,
        request_epoch=request.key.request_epoch,
        life=request.life,
        upload=request.upload.phase,
        retain=request.retain.phase,
        store=request.store.phase,
        map_revision=request.map_revision,
        generation=request.current,
        views=[held.generation for held in request.views],
        view_slots={str(layer): ids.size for layer, ids in view.logical.items()} if view else {},
        tail={str(block.logical): block.phase for block in request.tail},
        settling=[opened.operation.operation_id for opened in request.settling],
        fences=list(request.fences),
        held_areas=len(
            {(layer, area) for held in holdings for layer, ids in held.areas.items() for area in ids.tolist()}
        ),
        held_rows=sorted(state.ownership.rows(request.key)),
        held_sources=state.ownership.sources(request.key).size,
        owned_blocks=[blocks.size for blocks in state.ownership.owned(request.key, state.pool.layout)],
    )


POOL_VALUES: Final[Mapping[str, Callable[[State], str]]] = {
    "pool generation": lambda state: str(state.pool.pool_generation),
    "ranks": lambda state: str(dict(state.pool.ranks)),
    "lost ranks": lambda state: str(list(state.pool.lost)),
    "producer epoch": lambda state: str(state.pool.producer_epoch),
    "next operation": lambda state: str(state.pool.next_operation_id),
    "prefixes": lambda state: str([prefix.number for prefix in state.pool.prefixes]),
    "shared blocks": lambda state: str([len(group.blocks) // 4 for group in state.ownership.shared]),
}
"""What an explanation compares of the pool, by name."""


def state_values(state: State, key: RequestKey) -> dict[str, str]:
    """Everything that an explanation compares, by name."""
    found = {name: read(state) for name, read in POOL_VALUES.items()}
    requests = [state.request(key)] if key != POOL else list(state.requests.values())
    for request in requests:
        if request is None:
            continue
        prefix = f"{named(request.key)} " if key == POOL else ""
        figure = figures(state, request)
        found |= {
            f"{prefix}{name.replace('_', ' ')}": str(getattr(figure, name))
            for name in figure.__struct_fields__
            if name not in ("request_id", "request_epoch")
        }
        found[f"{prefix}selection revision"] = str(request.selection_revision)
        found[f"{prefix}valid CPU blocks"] = str(int((int32_view(request.source) >= 0).sum()))
        found[f"{prefix}stale CPU blocks"] = str(int((int32_view(request.stale) >= 0).sum()))
        found[f"{prefix}outcomes"] = str(
            {o.operation.operation_id: dict(o.outcomes) for o in (*request.open_operations(), *request.settling)}
        )
    return found
