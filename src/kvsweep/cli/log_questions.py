"""`kvsweep log replay`, `explain`, `why-block`, `diff`: what was the state, why, whose block, where do runs differ."""

from typing import Annotated

import typer

from kvsweep.cli.log_draw import draw_block, draw_diff, draw_figures, draw_holders, draw_state, owner_at
from kvsweep.cli.log_options import (
    Operation,
    Rank,
    Types,
    Until,
    Which,
    Who,
    block_of,
    conditions,
    lives_of,
    opened,
    url_of,
)
from kvsweep.cli.terminal import DATA_FAULT, AsJson, answer, fail, progress
from kvsweep.ledger.errors import LayoutError
from kvsweep.ledger.inspect.as_data import Figures, figures
from kvsweep.ledger.inspect.explain import render
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.inspect.verify import Verified
from kvsweep.ledger.inspect.why_block import LIVES_FOLDED


def replay(
    where: Which,
    request: Who = None,
    until: Until = None,
    whole: Annotated[
        bool, typer.Option("--verify", help="Only the verdict, and from the first event on, as `verify` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fold the ledger again, from its newest snapshot on, compare every recorded digest, and show the state.

    With --request that request alone is folded, and no digest is compared.
    """
    with opened(where) as ledger:
        lives, shown = lives_of(ledger, request), list[Figures]()
        last = ledger.last() if until is None else until
        if lives is not None and not whole:
            shown = ledger.figures(until, lives=lives)
            if as_json:
                verdict = {"events": last, "digest": None, "recorded_digest": None, "ok": True}
                answer(verdict | {"position": last, "requests": shown})
            else:
                draw_figures(shown, last)
            return
        with progress("replay", last) as tell:
            if whole:
                verified = ledger.verify(until=until, progress=tell)
            else:
                verified, state = ledger.check(until=until, progress=tell)
                shown = [figures(state, one) for one in state.requests.values()] if verified.ok else []
        if as_json:
            answer(outcome_of(verified) | ({} if whole or not verified.ok else {"position": last, "requests": shown}))
        else:
            draw_state(verified, shown, last)
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
        fail(f"{where} does not hold{at}: {verified.message}", DATA_FAULT, command="kvsweep log")


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
            if as_json:
                owner = owner_at(found, at)
                answer({"group": found.group, "block": found.block, "at": at, "owner": owner, "holds": found.at(at)})
            else:
                draw_holders(found, at)
        elif as_json:
            answer(found)
        else:
            draw_block(found)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A ledger.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The ledger to hold against it.")],
    every_event: Annotated[
        bool, typer.Option("--every-event", help="Compare from the first event on, whatever digests were recorded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The first event in which two runs differ, and how their states differ then. Measured times do not count."""
    with opened(first) as one, Ledger.open(url_of(second)) as other:
        with progress("compare", min(one.last(), other.last())) as tell:
            found = one.diff(other, every_event=every_event, progress=tell)
        if as_json:
            answer(found)
        else:
            draw_diff(found, first, second)
