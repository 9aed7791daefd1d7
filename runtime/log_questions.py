"""`kvsweep log replay`, `explain`, `why-block`, `diff`: what was the state, why, whose block, where do runs part."""

from collections import Counter
from typing import Annotated

import typer
from rich.text import Text

from kvsweep.ledger.block_life import LIVES_FOLDED, BlockLife
from kvsweep.ledger.block_watch import Hold
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.explain import render
from kvsweep.ledger.figures import Figures, figures
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.parting import Apart, Parting, Side
from kvsweep.ledger.plain import named
from kvsweep.ledger.replay import Ledger
from kvsweep.ledger.store import Position
from kvsweep.ledger.verify import Verified
from kvsweep.runtime.log_view import (
    DATA_FAULT,
    AsJson,
    Operation,
    Rank,
    Types,
    Until,
    Which,
    Who,
    answer,
    block_of,
    by_layer,
    conditions,
    console,
    lives_of,
    opened,
    progress,
    table,
    url_of,
    who,
)


def replay(
    where: Which,
    request: Who = None,
    until: Until = None,
    whole: Annotated[
        bool, typer.Option("--verify", help="Only the verdict, and from the first event on, as `verify` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fold the ledger again, from its newest snapshot on, compare every recorded digest, and show the state."""
    with opened(where) as ledger:
        lives = lives_of(ledger, request)
        with progress("replay", ledger.last() if until is None else until) as tell:
            if whole:
                verified, shown = ledger.verify(until=until, progress=tell), []
            else:
                verified, state = ledger.check(until=until, progress=tell)
                wanted = [one for one in state.requests.values() if lives is None or one.key in lives]
                shown = [figures(state, one) for one in wanted] if verified.ok else []
        last = ledger.last() if until is None else until
        if as_json:
            answer(outcome_of(verified) | ({} if whole or not verified.ok else {"position": last, "requests": shown}))
        else:
            _show_state(verified, shown, last)
        refuse_broken(where, verified)


def outcome_of(verified: Verified) -> dict[str, object]:
    """What `replay` and `verify` say under --json."""
    outcome: dict[str, object] = {
        "events": verified.events,
        "digest": verified.digest,
        "recorded_digest": verified.recorded_digest,
        "ok": verified.ok,
        "since": verified.since,
    }
    if not verified.ok:
        outcome |= {"position": verified.position, "message": verified.message}
    return outcome


def refuse_broken(where: str, verified: Verified) -> None:
    """One sentence and exit code 1 for a ledger that does not hold."""
    if not verified.ok:
        at = "" if verified.position is None else f" at position {verified.position}"
        typer.echo(f"kvsweep log: {where} does not hold{at}: {verified.message}", err=True)
        raise typer.Exit(DATA_FAULT)


def explain(
    where: Which,
    position: Annotated[
        int | None, typer.Argument(metavar="[POSITION]", help="Of the event; else the last that meets the conditions.")
    ] = None,
    request: Who = None,
    types: Types = None,
    operation: Operation = None,
    rank: Rank = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Why an event was legal, ignored or refused: the facts before it, the rule, the clause, what it changed."""
    with opened(where) as ledger:
        if position is None:
            asked = conditions(ledger, request=request, types=types, operation=operation, rank=rank, until=until)
            found = next(ledger.find(asked, newest_first=True), None)
            if found is None:
                raise LayoutError("ledger", "at least one event that meets the conditions", "none")
            position = found.position
        explanation = ledger.explain(position)
        if as_json:
            answer(explanation)
        else:
            typer.echo(render(explanation))


def why_block(
    where: Which,
    block: Annotated[str, typer.Argument(metavar="GROUP:ID", help="KV-cache group and block of the device pool.")],
    until: Until = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="POSITION", help="Only who held it just after this position.")
    ] = None,
    lives: Annotated[
        int, typer.Option("--lives", help="Look into at most so many of its latest owners.", min=1)
    ] = LIVES_FOLDED,
    as_json: AsJson = False,
) -> None:
    """The whole life of a block: owners, leases, fences, transfers and what was written, layer by layer."""
    with opened(where) as ledger:
        asked = block_of(block)
        if at is not None and not 0 <= at <= ledger.last():
            raise LayoutError("--at", f"a position from 0 to {ledger.last()}", str(at))
        found = ledger.why_block(asked.group, asked.block, until=until, lives=lives)
        if at is not None:
            _show_holders(found, at, as_json)
        elif as_json:
            answer(found)
        else:
            _show_block(found)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A ledger.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The ledger to hold against it.")],
    every_event: Annotated[
        bool, typer.Option("--every-event", help="Compare from the first event on, whatever digests were recorded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The first event where two runs part, and what their states have apart there. Measured times do not count."""
    with opened(first) as one, Ledger.open(url_of(second)) as other:
        with progress("compare", min(one.last(), other.last())) as tell:
            found = one.diff(other, every_event=every_event, progress=tell)
        if as_json:
            answer(found)
        else:
            _show_parting(found, first, second)


# ---- tables


def _show_state(verified: Verified, shown: list[Figures], position: Position) -> None:
    screen = console()
    if shown:
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
        screen.print(drawn)
    recorded = "no digest was recorded" if verified.recorded_digest is None else f"recorded {verified.recorded_digest}"
    since = f" (from the snapshot at {verified.since})" if verified.since else ""
    screen.print(Text(f"{verified.events} events{since}; digest {verified.digest}; {recorded}; ok: {verified.ok}"))


def _spread(slots: dict[str, int]) -> str:
    """Slots over the layers: one number if they agree, else the least and the most."""
    if not slots:
        return "no slots"
    least, most = min(slots.values()), max(slots.values())
    return f"slots: {least}" if least == most else f"slots: {least} to {most}"


def _holder(hold: Hold) -> str:
    if hold.kind in ("destination", "source"):
        return f"{hold.kind} of operation {hold.number}"
    return {"view": f"generation {hold.number}"}.get(hold.kind, f"{hold.kind} {hold.number}")


def _show_holders(found: BlockLife, at: Position, as_json: bool) -> None:
    owner = next((o for o in found.owners if o.since <= at and (o.until is None or o.until > at)), None)
    holds = found.at(at)
    if as_json:
        answer({"group": found.group, "block": found.block, "at": at, "owner": owner, "holds": holds})
        return
    screen = console()
    owned = Text("nobody") if owner is None else who(owner.request, owner.epoch)
    since = "" if owner is None else f" since {owner.since}"
    screen.print(Text(f"block {found.group}:{found.block} after position {at}: owned by ") + owned + Text(since))
    drawn = table("holder", "request", "layer: logical block", "from", "to")
    for hold, layers in by_layer(holds):
        drawn.add_row(_holder(hold), who(hold.request, hold.epoch), layers, str(hold.since), _end(hold.until))
    screen.print(drawn)


def _end(until: Position | None) -> str:
    return "" if until is None else str(until)


def _show_block(found: BlockLife) -> None:
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
    events = {fact.position: fact for fact in found.events}
    drawn = table("position", "request", "event", "from here on", "until here", title="its life")
    begun, ended = dict[int, list[str]](), dict[int, list[str]]()
    for hold, layers in by_layer(found.holds):
        begun.setdefault(hold.since, []).append(f"{_holder(hold)} [{layers}]")
    for hold, layers in by_layer(hold for hold in found.holds if hold.until is not None):
        ended.setdefault(hold.until or 0, []).append(f"{_holder(hold)} [{layers}]")
    for position in sorted({*events, *begun, *ended}):
        fact = events.get(position)
        drawn.add_row(
            str(position),
            Text(fact.stream if fact else ""),
            Text(f"{fact.type}: {fact.sentence}" if fact else "a snapshot stands here"),
            Text("\n".join(begun.get(position, ()))),
            Text("\n".join(ended.get(position, ()))),
        )
    screen.print(drawn)
    drawn = table("position", "layer", "logical", "written for", "had before by", title="writes: who had the area last")
    for write in found.writes:
        hold, before = write.hold, write.before
        drawn.add_row(
            str(hold.since),
            str(hold.layer),
            "?" if hold.logical is None else str(hold.logical),
            Text(f"{who(hold.request, hold.epoch)}, {_holder(hold)}"),
            Text("nobody" if before is None else f"{who(before.request, before.epoch)}, {_holder(before)}")
            + Text("" if before is None else f", {before.since} to {_end(before.until) or 'now'}"),
        )
    screen.print(drawn)


def _show_parting(found: Parting, first: str, second: str) -> None:
    screen = console()
    screen.print(Text(f"A is {first}\nB is {second}"))
    if found.evidence:
        screen.print(_apart("how the runs were begun", found.evidence))
    if not found.parted:
        screen.print(Text(f"the same {found.common} events"))
        return
    screen.print(Text(f"the same up to position {found.common}; these are the last that both have:"))
    for fact in found.before:
        screen.print(Text(f"  {fact.position} {fact.stream} {fact.type}: {fact.sentence}"))
    for name, side in (("A", found.first), ("B", found.second)):
        screen.print(Text(f"{name} goes on with {_next(side)}"))
    if found.fields:
        screen.print(_apart("the two events", found.fields))
    if found.states:
        screen.print(_apart("the states after them", found.states))


def _next(side: Side | None) -> str:
    return "nothing: it ends" if side is None else f"{side.type} of {side.stream}: {side.sentence}"


def _apart(title: str, rows: tuple[Apart, ...]) -> object:
    drawn = table("what", "A", "B", title=title)
    for row in rows:
        drawn.add_row(Text(row.what), Text(row.first), Text(row.second))
    return drawn
