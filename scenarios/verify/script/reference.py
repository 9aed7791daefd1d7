"""Tables of the scenario format for its page, read from the structs themselves."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from msgspec import Struct

from kvsweep.scenarios.verify.script.address import EVENTS, Message, Moment
from kvsweep.scenarios.verify.script.expectations import LAWS, SITUATIONS
from kvsweep.scenarios.verify.script.faults import Fault
from kvsweep.scenarios.verify.script.format import Expect, Script
from kvsweep.scenarios.verify.script.steps import Step, _Lasting
from kvsweep.scenarios.verify.script.world import Group, Links, ScenarioWorld

_COMMON = {True: ("name", "wait", "refused", "aborted"), False: ("refused",)}
"""Fields of every step that lasts, and of every other: told once, before the table."""


def tables() -> dict[str, str]:
    """Name of a part of the page → Markdown."""
    return {
        "script": fields_table(Script),
        "world": fields_table(ScenarioWorld),
        "group": fields_table(Group),
        "links": fields_table(Links),
        "steps": kinds_table(get_args(Step)),
        "faults": kinds_table(get_args(Fault)),
        "message": fields_table(Message),
        "moment": fields_table(Moment),
        "expect": fields_table(Expect),
        "laws": _table(("law", "what it says"), LAWS.items()),
        "situations": _table(("situation", "what happens"), SITUATIONS.items()),
        "events": ", ".join(f"`{name}`" for name in sorted(EVENTS)),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def fields_table(kind: type[Struct]) -> str:
    """Field, default and what it is: the comment beside it, or its line in the docstring."""
    told = {**_told(kind), **_comments(kind)}
    rows = [(f"`{field.name}`", _default(field), told.get(field.name, "")) for field in msgspec.structs.fields(kind)]
    return _table(("field", "default", "what it is"), rows)


def kinds_table(kinds: tuple[Any, ...]) -> str:
    """One row a kind of step or fault: its `do`, its fields, what it does."""
    rows = []
    for kind in kinds:
        told = {**_told(kind), **_comments(kind)}
        fields = [
            field for field in msgspec.structs.fields(kind) if field.name not in _COMMON[issubclass(kind, _Lasting)]
        ]
        lines = [_summary(kind), *(f"`{name}`: {text}" for name, text in told.items())]
        named = [f"`{field.name}`{_short(field)}" for field in fields]
        rows.append((f"`{kind.__struct_config__.tag}`", "<br>".join(named), "<br>".join(lines)))
    return _table(("do", "fields", "what it does"), rows)


def _short(field: Any) -> str:
    default = _default(field)
    return f" = {default}" if default else ""


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    if value is None:
        return ""
    if isinstance(value, Struct | tuple | dict):
        value = msgspec.to_builtins(value)
    return f"`{msgspec.json.encode(value).decode()}`"


def _doc(kind: type[Struct]) -> list[str]:
    return (inspect.getdoc(kind) or "").splitlines()


def _summary(kind: type[Struct]) -> str:
    """The docstring without the lines that describe fields."""
    return " ".join(line for line in _paragraphs(kind) if line).strip()


def _paragraphs(kind: type[Struct]) -> list[str]:
    lines, names = _doc(kind), {field.name for field in msgspec.structs.fields(kind)}
    kept = []
    for line in lines:
        if set(re.split(r", |  ", line.strip())[:1]) & names and "  " in line.strip():
            break
        kept.append(line.strip())
    return kept


def _told(kind: type[Struct]) -> dict[str, str]:
    """What the docstring says of single fields: lines that begin with their names, and what is indented below."""
    rest, found, last = _doc(kind)[len(_paragraphs(kind)) :], dict[str, str](), ""
    for line in rest:
        named = re.match(r"(\w+(?:, \w+)*)  +(.+)", line)
        if named:
            last = named[1]
            found[last] = named[2]
        elif last and line.strip():
            found[last] += f" {line.strip()}"
    return {name: text for names, text in found.items() for name in names.split(", ")}


def _comments(kind: type[Struct]) -> dict[str, str]:
    """Comments that stand beside the fields, of parents too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if issubclass(one, Struct) and one.__module__.startswith("kvsweep."):
            for line in textwrap.dedent(inspect.getsource(one)).splitlines():
                named = re.match(r"    (\w+): .+?  # (.+)", line)
                if named:
                    found[named[1]] = named[2]
    return found
