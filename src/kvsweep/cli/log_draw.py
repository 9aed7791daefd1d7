"""How `kvsweep log` draws its answers: times, tables, a state, a block's life, where two ledgers differ."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.inspect.as_data import Figures, named
from kvsweep.ledger.inspect.diff import Differing, LedgerDiff, Side
from kvsweep.ledger.inspect.verify import Verified
from kvsweep.ledger.inspect.why_block import BlockLife, Hold, Owner, Write
from kvsweep.ledger.store.log import Position, Record

PIPE_WIDTH: Final = 160
WHOLE: Final = frozenset({"position", "time (UTC)", "seq", "type", "from", "to", "layer", "logical", "events", "bytes"})

PARTS_SHOWN: Final = 8  # of one table of a run's evidence; more are counted
TEXT_SHOWN: Final = 200  # characters of one value


def time_text(microseconds: int) -> str:
    """A stored time in UTC; empty where none is known."""
    if not microseconds:
        return ""
    found = datetime.datetime.fromtimestamp(microseconds / 1e6, tz=datetime.UTC)
    return found.isoformat(timespec="milliseconds").removesuffix("+00:00")


def counted(records: Iterable[Record], tell: Callable[[Position], None]) -> Iterator[Record]:
    """The records; every thousandth moves the bar."""
    for index, record in enumerate(records):
        if index % 1000 == 0:
            tell(record.position)
        yield record


def console() -> Console:
    """As wide as the terminal, and wide where there is none: what reads a file or a pipe does not mind."""
    found = Console(soft_wrap=True)
    return found if found.is_terminal else Console(soft_wrap=True, width=PIPE_WIDTH)


def table(*columns: str, title: str | None = None) -> Table:
    """Columns that are short by nature keep their words whole."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column in WHOLE)
    return made


def who(request: str, epoch: int) -> Text:
    return Text(named(RequestKey(request, epoch)) if (request, epoch) != ("@pool", 0) else "the pool")


def draw_state(verified: Verified, shown: list[Figures], position: Position) -> None:
    if shown:
        draw_figures(shown, position)
    recorded = "no digest was recorded" if verified.recorded_digest is None else f"recorded {verified.recorded_digest}"
    since = f" (from the snapshot at {verified.since})" if verified.since else ""
    said = f"{verified.events} events{since}; digest {verified.digest}; {recorded}; ok: {verified.ok}"
    console().print(Text(said))


def draw_figures(shown: list[Figures], position: Position) -> None:
    drawn = table("request", "life", "lanes", "view", "tail", "held", title=f"state after position {position}")
    for one in shown:
        drawn.add_row(
            Text(named(RequestKey(one.request_id, one.request_epoch))),
            one.life,
            f"upload {one.upload}\nretain {one.retain}\nstore {one.store}",
            f"{one.generation} of {one.views}\n{_spread(one.view_slots)}" if one.views else "none",
            "\n".join(f"{n} {phase}" for phase, n in Counter(one.tail.values()).items()) or "none",
            f"{one.held_areas} areas in {sum(one.owned_blocks)} blocks\n"
            f"{one.held_sources} CPU blocks\nrows {one.held_rows}",
        )
    console().print(drawn)


def _spread(slots: dict[str, int]) -> str:
    """Slots over the layers: one number if they agree, else the least and the most."""
    if not slots:
        return "no slots"
    least, most = min(slots.values()), max(slots.values())
    return f"slots: {least}" if least == most else f"slots: {least} to {most}"


def _holder(hold: Hold) -> str:
    if hold.kind in ("destination", "source"):
        return f"{hold.kind} of operation {hold.number}"
    return {"view": f"generation {hold.number}", "tail": "tail"}.get(hold.kind, f"{hold.kind} {hold.number}")


def _by_layer(holds: Iterable[Hold]) -> Iterator[tuple[Hold, str, str]]:
    """Holds that differ in their layer only, as one: (the first, its layers, what stands in each of them)."""
    groups: dict[tuple[object, ...], list[Hold]] = {}
    for hold in holds:
        groups.setdefault((hold.since, hold.until, hold.kind, hold.number, hold.request, hold.epoch), []).append(hold)
    for found in groups.values():
        logical = ["?" if one.logical is None else str(one.logical) for one in found]
        same = logical[0] if len(set(logical)) == 1 else ", ".join(logical)
        yield found[0], ", ".join(str(one.layer) for one in found), same


def draw_holders(found: BlockLife, at: Position) -> None:
    screen, owner = console(), owner_at(found, at)
    owned = Text("nobody") if owner is None else who(owner.request, owner.epoch)
    since = "" if owner is None else f" since {owner.since}"
    screen.print(Text(f"block {found.group}:{found.block} after position {at}: owned by ") + owned + Text(since))
    drawn = table("holder", "request", "layers", "logical", "from", "to")
    for hold, layers, logical in _by_layer(found.at(at)):
        drawn.add_row(_holder(hold), who(hold.request, hold.epoch), layers, logical, str(hold.since), _end(hold.until))
    screen.print(drawn)


def owner_at(found: BlockLife, at: Position) -> Owner | None:
    return next((one for one in found.owners if one.since <= at and (one.until is None or one.until > at)), None)


def _end(until: Position | None) -> str:
    return "" if until is None else str(until)


def draw_block(found: BlockLife) -> None:
    screen = console()
    drawn = table(
        "owner", "from", "to", "then", title=f"block {found.group}:{found.block}, layers {list(found.layers)}: owners"
    )
    for owner in found.owners:
        then = "" if owner.until is None else "shared" if owner.shared else "free"
        drawn.add_row(who(owner.request, owner.epoch), str(owner.since), _end(owner.until), then)
    screen.print(drawn)
    if found.left_out:
        screen.print(Text(f"{found.left_out} earlier times of ownership were not looked into: --lives, --until"))
    screen.print(_events(found))
    screen.print(_writes(found.writes))


def _events(found: BlockLife) -> Table:
    events = {fact.position: fact for fact in found.events}
    begun, ended = dict[int, list[str]](), dict[int, list[str]]()
    for hold, layers, logical in _by_layer(found.holds):
        text = f"{_holder(hold)}: logical {logical} in layers {layers}"
        begun.setdefault(hold.since, []).append(text)
        if hold.until is not None:
            ended.setdefault(hold.until, []).append(_holder(hold))
    drawn = table("position", "request", "event", "from here on held by", "no more by", title="its life")
    for position in sorted({*events, *begun, *ended}):
        fact = events.get(position)
        drawn.add_row(
            str(position),
            Text(fact.stream if fact else ""),
            Text(f"{fact.type}: {fact.sentence}" if fact else "the fold begins at a snapshot"),
            Text("\n".join(begun.get(position, ()))),
            Text("\n".join(ended.get(position, ()))),
        )
    return drawn


def _writes(writes: Iterable[Write]) -> Table:
    """Writes that differ in their layer only, as one row."""
    groups: dict[tuple[object, ...], list[Write]] = {}
    for write in writes:
        hold, before = write.hold, write.before
        had = None if before is None else (before.since, before.until, before.kind, before.number, before.request)
        groups.setdefault((hold.since, hold.kind, hold.number, hold.request, had), []).append(write)
    drawn = table("position", "layers", "logical", "written for", "had before by", title="writes: who had it last")
    for found in groups.values():
        hold, before = found[0].hold, found[0].before
        [(_, layers, logical)] = _by_layer(replace(write.hold, until=None) for write in found)
        last = "nobody"
        if before is not None:
            until = f"{before.until}" if before.until is not None else "now"
            last = f"{who(before.request, before.epoch)}, {_holder(before)}, {before.since} to {until}"
        written = f"{who(hold.request, hold.epoch)}, {_holder(hold)}"
        drawn.add_row(str(hold.since), layers, logical, Text(written), Text(last))
    return drawn


def draw_diff(found: LedgerDiff, first: str, second: str) -> None:
    screen = console()
    screen.print(Text(f"A is {first}\nB is {second}"))
    if found.evidence:
        screen.print(_differing("how the runs were begun", _summed(found.evidence)))
    if not found.parted:
        screen.print(Text(f"the same {found.common} events"))
        return
    screen.print(Text(f"the same up to position {found.common}; these are the last that both have:"))
    for fact in found.before:
        screen.print(Text(f"  {fact.position} {fact.stream} {fact.type}: {fact.sentence}"))
    for name, side in (("A", found.first), ("B", found.second)):
        screen.print(Text(f"{name} goes on with {_next(side)}"))
    if found.fields:
        screen.print(_differing("the two events", found.fields))
    if found.states:
        screen.print(_differing("the states after them", found.states))


def _summed(rows: tuple[Differing, ...]) -> tuple[Differing, ...]:
    """A table of which many entries differ counts as one row: the sources' digests."""
    parts: dict[str, list[Differing]] = {}
    for row in rows:
        parts.setdefault(row.what.partition(".")[0], []).append(row)
    found: list[Differing] = []
    for name, members in parts.items():
        if len(members) > PARTS_SHOWN:
            found.append(Differing(what=name, first=f"{len(members)} of them differ", second=""))
        else:
            found += members
    return tuple(found)


def _next(side: Side | None) -> str:
    return "nothing: it ends" if side is None else f"{side.type} of {side.stream}: {side.sentence}"


def _differing(title: str, rows: tuple[Differing, ...]) -> Table:
    drawn = table("what", "A", "B", title=title)
    for row in rows:
        drawn.add_row(Text(row.what), Text(_short(row.first)), Text(_short(row.second)))
    return drawn


def _short(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}… ({len(text)} characters)"
