"""Facts as plain data: dicts, lists, strings and numbers, for people, JSON and tests."""

from typing import Any, TypeAlias

from msgspec import Struct

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, Rows, int32_view

Plain: TypeAlias = dict[str, Any]


def plain(value: object) -> Any:
    """Rows become {layer: ids}, id bytes become lists of ids, structs become dicts by field name."""
    if isinstance(value, Rows):
        return {str(layer): ids for layer, ids in value.as_lists().items()}
    if isinstance(value, bytes):
        return int32_view(value).tolist()
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def plain_event(event: Event) -> Plain:
    """An event by its field names, its type first."""
    return {"type": type(event).__name__, **plain(event)}


def named(request: RequestKey) -> str:
    """A request for people: the whole id, quoted where it holds what a terminal would not print, and its epoch."""
    name = request.request_id
    return f"{name if name and name.isprintable() else repr(name)} #{request.request_epoch}"
