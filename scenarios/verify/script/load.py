"""Read, write and check scenario files. Whatever cannot be meant is refused with the path of the field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import tomli_w
from msgspec import Struct

from kvsweep.ledger.errors import LayoutError, SettingsError
from kvsweep.ledger.ids import POOL_STREAM
from kvsweep.scenarios.verify.script import faults as f
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.address import COMMANDS, EVENTS, RANK_MESSAGES, Message, Moment
from kvsweep.scenarios.verify.script.expectations import FIGURES, LAW_NAMES, SITUATIONS, VERDICTS
from kvsweep.scenarios.verify.script.format import Script

MAX_BYTES: Final = 1 << 20
"""Of a file."""
MAX_WORLD_BYTES: Final = 1 << 30
LIBRARY: Final = Path(__file__).parents[1] / "library"
ASKS: Final = (s.Upload, s.Retain, s.Round)
LASTING: Final = get_args(s.Lasting)


def library() -> list[Path]:
    """The scenarios that ship, in alphabetical order."""
    return sorted(LIBRARY.glob("*.toml"))


def load_script(path: Path) -> Script:
    """A checked scenario of a file. Raises SettingsError with the path of the field."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(str(path), "a readable TOML file", str(error.strerror or error)) from error
    if len(data) > MAX_BYTES:
        raise SettingsError(str(path), f"at most {MAX_BYTES} bytes", f"{len(data)} bytes")
    try:
        return parse(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise SettingsError(str(path), "UTF-8", str(error)) from error


def parse(text: str, name: str = "scenario") -> Script:
    """A checked scenario of TOML text; `name` stands first in the path that an error names."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(name, "TOML", str(error)) from error
    return of_data(data, name)


def of_data(data: dict[str, Any], name: str = "scenario") -> Script:
    """A checked scenario of plain data."""
    try:
        script = msgspec.convert(data, Script, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise SettingsError(f"{name}: {path.rstrip('`') or '$'}", "a field and value of the format", message) from error
    check(script, name)
    return script


def dump(script: Script) -> str:
    """The scenario as TOML: what `parse` reads back as an equal one."""
    text = tomli_w.dumps(msgspec.to_builtins(script, str_keys=True))
    # A string never holds a line break here: the writer escapes it. So whatever spans lines is a list.
    return _LIST.sub(lambda found: f"[{', '.join(_ITEM.findall(found[0]))}]", text)


_ITEM: Final = re.compile(r'-?\d+|"[^"\\]*"')
_LIST: Final = re.compile(rf"\[\n(?:\s*(?:{_ITEM.pattern}),\n)+\s*\]")
"""A list of numbers or plain strings, an item a line."""


def check(script: Script, name: str = "scenario") -> None:
    """Raise SettingsError where an address can fit nothing, or a name is not known. Scripts built in code too."""
    for path, expected, got in _faults_of(script):
        raise SettingsError(f"{name}: {path}", expected, got)


Found = Iterator[tuple[str, str, str]]
"""(path, what was expected, what came)."""


def _faults_of(script: Script) -> Found:
    try:
        script.world.layout()
    except LayoutError as error:
        yield f"$.world.{error.argument}", error.expected, error.got
        return
    if script.world.bytes > MAX_WORLD_BYTES:
        yield "$.world", f"at most {MAX_WORLD_BYTES} bytes of KV and staging", f"{script.world.bytes}"
        return
    if script.world.source == "copy" and not script.world.cpu_copy_blocks:
        yield "$.world.cpu_copy_blocks", "at least 1 where the source is copy", "0"
    if script.world.union and script.world.tables == "layer":
        yield "$.world.union", "false where every layer has its own table", "true"
    yield from _steps(script)
    yield from _addresses("$", script, script)
    for at, fault in enumerate(script.fault):
        yield from _fault(f"$.fault[{at}]", fault)
    for field, known in (("always", LAW_NAMES), ("sometimes", tuple(SITUATIONS))):
        for at, named in enumerate(getattr(script.expect, field)):
            if named not in known:
                yield f"$.expect.{field}[{at}]", f"one of {sorted(known)}", repr(named)
    for field, known in (("events", tuple(EVENTS)), ("verdicts", VERDICTS), ("final", FIGURES)):
        for named in getattr(script.expect, field):
            if named not in known:
                yield f"$.expect.{field}", f"keys out of {sorted(known)}", repr(named)


def _steps(script: Script) -> Found:
    """Names of steps: given once, and known before they are used."""
    opened: set[str] = set()
    named: dict[str, s.Step] = {}
    reading: set[str] = set()
    for at, step in enumerate(script.step):
        path = f"$.step[{at}]"
        if isinstance(step, s.Open):
            opened.add(step.request)
            if step.request == POOL_STREAM:
                yield f"{path}.request", "another name: moments mean the pool by this one", repr(step.request)
        for field, request in _requests_of(step):
            if request not in opened:
                yield f"{path}.{field}", f"a request that an earlier step opens, of {sorted(opened)}", repr(request)
        yield from _layers(path, step, script.world.layout().active_layers)
        if isinstance(step, s.Wait | s.Await) and step.refused:
            yield f"{path}.refused", "nothing: waiting is never refused", repr(step.refused)
        if isinstance(step, s.BeginStep):
            if step.name in reading:
                yield f"{path}.name", "a name that no open serving step has", repr(step.name)
            reading.add(step.name)
        elif isinstance(step, s.EndStep):
            if step.of not in reading:
                yield f"{path}.of", f"an open serving step, of {sorted(reading)}", repr(step.of)
            reading.discard(step.of)
        elif isinstance(step, s.Await | s.Say | s.Retry):
            known = sorted(n for n, one in named.items() if not isinstance(step, s.Retry) or isinstance(one, ASKS))
            if step.of not in known:
                yield f"{path}.of", f"an earlier step by its name, of {known}", repr(step.of)
        if isinstance(step, LASTING) and step.name:
            if step.name in named:
                yield f"{path}.name", "a name that no other step has", repr(step.name)
            named[step.name] = step
        elif isinstance(step, LASTING) and not step.wait:
            yield f"{path}.name", "a name, so that a step that does not wait can be waited for", "''"


def _requests_of(step: s.Step) -> Iterator[tuple[str, str]]:
    if isinstance(step, s.BeginStep):
        for request in step.requests:
            yield "requests", request
    else:
        named = getattr(step, "request", None)
        if isinstance(named, str):
            yield "request", named
    if isinstance(step, s.Register) and step.owner is not None:
        yield "owner", step.owner


def _layers(path: str, step: s.Step, active: tuple[int, ...]) -> Found:
    """Lists by layer name every active layer, and no other."""
    for field in ("want", "tail", "keep", "slots"):
        rows = getattr(step, field, None)
        if isinstance(rows, dict) and sorted(rows) != list(active):
            yield f"{path}.{field}", f"a list for each active layer {list(active)}", f"layers {sorted(rows)}"
    if isinstance(step, s.Select) and step.nan is not None and step.nan[0] not in active:
        yield f"{path}.nan", f"a layer of {list(active)}", str(step.nan[0])


def _fault(path: str, fault: f.Fault) -> Found:
    """What a fault can be done to."""
    if isinstance(fault, f.Stall | f.Fail | f.PartialWrite) and fault.on.message not in COMMANDS:
        yield f"{path}.on.message", f"a command to a rank, of {sorted(COMMANDS)}", repr(fault.on.message)
    if isinstance(fault, f.StaleEpoch | f.WrongOwner) and fault.on.message != "done":
        yield f"{path}.on.message", "'done', a rank's report", repr(fault.on.message)
    passed = RANK_MESSAGES | ({"acknowledged"} if isinstance(fault, f.Duplicate) else frozenset())
    if isinstance(fault, f.Reorder | f.Drop | f.Duplicate) and fault.on.message not in passed:
        yield f"{path}.on.message", f"a message to or from a rank, of {sorted(passed)}", repr(fault.on.message)
    if isinstance(fault, f.Delay) and fault.on.message == "gather":
        yield f"{path}.on.message", "any but gather, which is done before any rank hears of it", "'gather'"
    if isinstance(fault, f.Delay | f.Stall) and not fault.turns and fault.until is None:
        yield f"{path}", "turns or until", "neither"
    if isinstance(fault, f.Crash) and fault.coordinator and fault.rank is not None:
        yield f"{path}.rank", "none where the coordinator crashes: every rank ends with it", str(fault.rank)
    if isinstance(fault, f.Crash) and (fault.before is None) == (fault.after is None):
        yield f"{path}", "either before or after", "neither" if fault.before is None else "both"


def _addresses(path: str, value: object, script: Script) -> Found:
    """Every moment and message, wherever it stands, names what exists in this world."""
    if isinstance(value, Moment) and value.event not in EVENTS:
        yield f"{path}.event", f"one of {sorted(EVENTS)}", repr(value.event)
    if isinstance(value, Message) and value.rank is not None and value.message not in RANK_MESSAGES:
        yield f"{path}.rank", f"no rank for the producer's {value.message}", str(value.rank)
    if isinstance(value, Moment | Message) and value.request is not None:
        opened = sorted({step.request for step in script.step if isinstance(step, s.Open)} | {POOL_STREAM})
        if value.request not in opened:
            yield f"{path}.request", f"one of {opened}", repr(value.request)
    if isinstance(value, Struct):
        rank = getattr(value, "rank", None)
        if isinstance(rank, int) and rank >= script.world.ranks:
            yield f"{path}.rank", f"a rank below {script.world.ranks}", str(rank)
        for field in value.__struct_fields__:
            yield from _addresses(f"{path}.{field}", getattr(value, field), script)
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from _addresses(f"{path}[{at}]", item, script)
