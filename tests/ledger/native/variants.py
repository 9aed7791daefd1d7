"""Every event that differs from a given one in one place: a number, an id, a word, a row, a part of an operation.

And those whose fields of rows, some or all, differ in the same way, so that they fit each other all the same.
"""

import types
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvsweep.ledger.events import Event, Implementation, Measured
from kvsweep.ledger.ids import Int32, RequestKey, Rows, int32_view
from kvsweep.ledger.layout import Layout

LAST_ID, LAST_COUNT = 2**31 - 1, 2**63 - 1
NAMES = ("a", "b", "@pool", "")


def variants(event: Event) -> Iterator[Event]:
    """Some cannot be encoded, and some are legal too."""
    hints = get_type_hints(type(event))
    for name, annotation in hints.items():
        for value in other_values(annotation, getattr(event, name)):
            yield replace(event, **{name: value})
    names = [name for name, annotation in hints.items() if Rows in (annotation, get_origin(annotation))]
    for count in range(2, len(names) + 1):
        for some in combinations(names, count):
            yield from alike(event, some)


def alike(event: Event, names: tuple[str, ...]) -> Iterator[Event]:
    """A layer more or fewer in each of these fields, an id more or fewer in one layer, two ids in the other order."""
    lists = {name: getattr(event, name).as_lists() for name in names}
    for layer in range(4):
        changes: list[dict[str, dict[int, list[int]]]] = []
        if all(layer in rows for rows in lists.values()):
            changes.append({name: {at: ids for at, ids in rows.items() if at != layer} for name, rows in lists.items()})
            more = {name: [*rows[layer], max(rows[layer], default=-1) + 1] for name, rows in lists.items()}
            fewer = {name: rows[layer][:-1] for name, rows in lists.items()}
            turned = {name: rows[layer][::-1] for name, rows in lists.items()}
            changes += [{name: {**lists[name], layer: ids} for name, ids in to.items()} for to in (more, fewer, turned)]
        elif not any(layer in rows for rows in lists.values()):
            changes += [{name: {**rows, layer: ids} for name, rows in lists.items()} for ids in ([], [0])]
        for change in changes:
            yield replace(event, **{name: Rows.of(rows) for name, rows in change.items()})


def other_values(annotation: Any, value: Any) -> Iterator[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        yield from {value - 1, value + 1, 0, 1, 2**31, LAST_COUNT} - {value}
    elif annotation is str:
        yield from {"", value + "x", "d1"} - {value}
    elif annotation is bytes:
        yield from (ids.astype("<i4").tobytes() for ids in other_ids(int32_view(value)))
    elif origin is Literal:
        yield from (word for word in arguments if word != value)
    elif annotation is RequestKey:
        yield from (RequestKey(name, value.request_epoch) for name in NAMES if name != value.request_id)
        yield from (RequestKey(value.request_id, epoch) for epoch in other_values(int, value.request_epoch))
    elif Rows in (annotation, origin):
        yield from other_rows(value)
    elif origin in (Union, types.UnionType):
        inner = next(part for part in arguments if part is not type(None))
        yield from [Rows.of({0: [1]})] if value is None else [None, *other_values(inner, value)]
    elif origin is tuple and arguments[1:] == (...,):
        yield from other_tuples(arguments[0], value)
    elif origin is tuple:
        for at, part in enumerate(arguments):
            yield from ((*value[:at], other, *value[at + 1 :]) for other in other_values(part, value[at]))
    elif annotation in (Measured, Implementation):
        yield Measured(wait_s=1.5) if annotation is Measured else Implementation(kernels="others")
    elif isinstance(annotation, type) and issubclass(annotation, Struct) and annotation is not Layout:
        for name, part in get_type_hints(annotation).items():
            yield from (replace(value, **{name: other}) for other in other_values(part, getattr(value, name)))


def other_tuples(annotation: Any, value: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for at, item in enumerate(value):
        yield (*value[:at], *value[at + 1 :])
        yield from ((*value[:at], other, *value[at + 1 :]) for other in other_values(annotation, item))
    if value:
        yield (*value, value[-1])
        yield value[::-1]
    if annotation is bytes:
        yield (*value, b"")
    elif annotation == tuple[int, int]:
        yield (*value, (len(value), 10))


def other_ids(ids: Int32) -> Iterator[Int32]:
    """One id more, fewer, another one, twice; two in the other order."""
    more = {int(ids.max()) + 1 if ids.size else 0, 0, 5, LAST_ID} - {LAST_ID + 1}
    for added in sorted(more):
        yield np.append(ids, np.int32(added))
        yield np.insert(ids, 0, np.int32(added))
    for at in range(min(ids.size, 8)):
        yield np.delete(ids, at)
        for other in {int(ids[at]) - 1, int(ids[at]) + 1, 0, 2**24, LAST_ID} - {int(ids[at]), LAST_ID + 1}:
            changed = ids.copy()
            changed[at] = other
            yield changed
    if ids.size:
        yield ids[:0]
        yield np.append(ids, ids[:1])
    if ids.size > 1:
        yield ids[::-1]
        yield np.concatenate((ids[1::-1], ids[2:]))


def other_rows(rows: Rows[Any]) -> Iterator[Rows[Any]]:
    lists = rows.as_lists()
    for layer, ids in lists.items():
        yield Rows.of({at: row for at, row in lists.items() if at != layer})
        for other in other_ids(np.asarray(ids, dtype=np.int32)):
            yield Rows.of({**lists, layer: other})
        for to in lists:
            if ids and to != layer:  # its last id stands in another row
                yield Rows.of({**lists, layer: ids[:-1], to: [*lists[to], ids[-1]]})
    for layer in range(max(lists, default=-1) + 3):
        if layer not in lists:
            yield Rows.of({**lists, layer: []})
            yield Rows.of({**lists, layer: [0]})
    yield Rows.of({})
