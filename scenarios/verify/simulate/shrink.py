"""A failing scenario made small: requests, steps and faults are dropped and the world shrunk while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from kvsweep.ledger.errors import SettingsError
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import check
from kvsweep.scenarios.verify.script.world import Group, Links, ScenarioWorld

TRIES = 400


def shrink(script: Script, fails: Callable[[Script], bool], *, tries: int = TRIES) -> tuple[Script, int]:
    """The smallest scenario found that still fails, and how many were run: `tries` at most.

    fails  whether a scenario fails in the way that is looked for; it is asked about checked scenarios only
    """
    run, seen = 0, {_key(script)}
    shrunk = True
    while shrunk and run < tries:
        shrunk = False
        for candidate in _smaller(script):
            pruned = _prune(candidate)
            if _key(pruned) in seen or not _checked(pruned):
                continue
            seen.add(_key(pruned))
            run += 1
            if fails(pruned):
                script, shrunk = pruned, True
                break
            if run >= tries:
                break
    return script, run


def _key(script: Script) -> str:
    return repr(script)


def _checked(script: Script) -> bool:
    try:
        check(script)
    except SettingsError:
        return False
    return True


def _smaller(script: Script) -> Iterator[Script]:
    """Large cuts first; every candidate is smaller than the script, so that shrinking ends."""
    for request in sorted({step.request for step in script.step if isinstance(step, s.Open)}):
        yield replace(script, step=tuple(step for step in script.step if request not in _requests(step)))
    for field in ("fault", "step"):
        items = getattr(script, field)
        size = len(items)
        while size:
            for start in range(0, len(items), size):
                yield replace(script, **{field: items[:start] + items[start + size :]})
            size //= 2
    for world in _smaller_worlds(script.world):
        yield replace(script, world=world)
    for at, step in enumerate(script.step):
        for plain in _plainer(step):
            yield replace(script, step=(*script.step[:at], plain, *script.step[at + 1 :]))


def _requests(step: s.Step) -> tuple[str, ...]:
    if isinstance(step, s.BeginStep):
        return step.requests
    request = getattr(step, "request", None)
    return (request,) if isinstance(request, str) else ()


def _smaller_worlds(world: ScenarioWorld) -> Iterator[ScenarioWorld]:
    if world.links != Links():
        yield replace(world, links=Links())
        for field in ("lose", "duplicate", "delay"):
            if getattr(world.links, field):
                yield replace(world, links=replace(world.links, **{field: 0}))
    if world.ranks > 1:
        yield replace(world, ranks=world.ranks - 1)
    if len(world.groups) > 1:
        for at in range(len(world.groups)):
            yield replace(world, groups=world.groups[:at] + world.groups[at + 1 :])
    for at, group in enumerate(world.groups):
        if group.layers > 1:
            fewer: Group = replace(group, layers=group.layers - 1)
            yield replace(world, groups=(*world.groups[:at], fewer, *world.groups[at + 1 :]))
    if world.source == "copy":
        yield replace(world, source="source_only", cpu_copy_blocks=0)
    if world.union:
        yield replace(world, union=False)
    elif world.tables == "group":
        yield replace(world, tables="layer")


def _plainer(step: s.Step) -> Iterator[s.Step]:
    """The same step with less in it."""
    for field, plain in (("blocks", 1), ("turns", 1), ("tokens", 0)):
        value = getattr(step, field, None)
        if isinstance(value, int) and value > plain:
            yield replace(step, **{field: plain})
            yield replace(step, **{field: value - 1})
    if isinstance(step, s.BeginStep) and len(step.requests) > 1:
        for at in range(len(step.requests)):
            yield replace(step, requests=step.requests[:at] + step.requests[at + 1 :])


def _prune(script: Script) -> Script:
    """Without steps and faults that name a request or a step that is gone."""
    opened: set[str] = set()
    named: set[str] = set()
    reading: set[str] = set()
    kept: list[s.Step] = []
    for step in script.step:
        if isinstance(step, s.Open):
            opened.add(step.request)
        if not set(_requests(step)) <= opened or (isinstance(step, s.Register) and step.owner not in {None, *opened}):
            continue
        if isinstance(step, s.Await | s.Say | s.Retry) and step.of not in named:
            continue
        if isinstance(step, s.EndStep) and step.of not in reading:
            continue
        if isinstance(step, s.BeginStep):
            reading.add(step.name)
        elif isinstance(step, s.EndStep):
            reading.discard(step.of)
        elif name := getattr(step, "name", ""):
            named.add(name)
        kept.append(step)
    return replace(script, step=tuple(kept))
