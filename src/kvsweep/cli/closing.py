"""The demo's closing tables: every cost by itself, what it freed apart from that, and what was not active."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvsweep.scenarios.demo.options import DRAFT_TOKENS
from kvsweep.scenarios.demo.result import DemoResult

COSTS = {
    "cpu_gather_bytes": "copied on the CPU into copy destinations",
    "cpu_destination_blocks": "CPU copy destinations allocated (blocks)",
    "h2d_bytes": "CPU memory to staging",
    "unpack_bytes": "staging to areas",
    "d2h_bytes": "device-written blocks mirrored to the CPU",
    "resident_moved_bytes": "moved from area to area on the device",
    "packed_bytes": "of these, by pack",
    "table_updates": "layer tables written",
    "metadata_bytes": "ids and tables in messages",
    "plan_s": "planning (seconds)",
    "wait_s": "waiting for ranks (seconds)",
}


def closing_table(result: DemoResult) -> Group:
    return Group(_text(result), _costs(result), _blocks(result), _run(result))


def _text(result: DemoResult) -> Text:
    words = " ".join(result.text.split())
    return Text(f"… {words[:400]}{' …' if len(words) > 400 else ''}\n", style="italic")


def _costs(result: DemoResult) -> Table:
    table = Table("cost", "reported", "counted", "what it is", title="What it cost")
    for name, meaning in COSTS.items():
        value, counted = result.metrics[name], result.counted.get(name)
        table.add_row(
            name,
            f"{value:,.3f}" if isinstance(value, float) else f"{value:,}",
            "" if counted is None else f"{counted:,}",
            meaning,
        )
    table.caption = "reported: by operations that ended well; counted: by the memories that the bytes went through"
    return table


def _blocks(result: DemoResult) -> Table:
    table = Table("blocks and areas", "count", title="What it freed")
    for name, value in (
        ("physical blocks released", result.physical_blocks_released),
        ("device pool", sum(result.device_blocks)),
        ("owned by one request at most", result.owned_blocks_max),
        ("owned at the end of decoding", result.owned_blocks),
        ("live in the fullest layer", result.live_blocks),
        ("vacant areas at the end", result.vacant_areas),
        ("areas uploaded", result.uploaded_areas),
        ("areas adopted without a copy", result.adopted_areas),
    ):
        table.add_row(name, f"{value:,}")
    if result.requests > 1:
        table.add_row("prompt blocks shared", f"{result.shared_blocks:,}")
        table.add_row("preemptions", f"{result.preemptions:,}")
    for mode, count in result.remap.items():
        table.add_row(f"retained by {mode}", f"{count:,}")
    return table


def _model(model: dict[str, Any]) -> str:
    made = f"SHA-256 {model['sha256']}" if model["sha256"] else "made from the seed"
    return f"{model['name']} {model['dtype']}, {made}"


def _counts(found: dict[str, int]) -> str:
    return "; ".join(f"{count} × {name}" for name, count in sorted(found.items()))


def _crowd(result: DemoResult) -> list[tuple[str, str]]:
    """Rows that only runs with several requests or ranks, or with a storm, have."""
    rows = []
    if result.requests > 1 or result.ranks > 1:
        rows.append(("requests, ranks", f"{result.requests}, {result.ranks}"))
    if result.refused:
        rows.append(("rounds that ended early", _counts(result.refused)))
    if result.storm:
        rows.append(("the storm", _counts(result.storm)))
    return rows


def _run(result: DemoResult) -> Table:
    same = "token for token" if result.lossless else f"differs first in {result.first_difference}"
    held = {name: count for name, count in result.held_at_end.items() if count}
    table = Table("run", title="The run")
    table.add_column("", overflow="fold")
    for name, value in (
        ("equals plain decoding", same),
        ("tokens", f"{sum(map(len, result.tokens.values()))} in {result.verifies} verifies, {result.rounds} rounds"),
        ("draft tokens accepted a verify", f"{result.accepted_per_verify:.2f} of {DRAFT_TOKENS}"),
        *_crowd(result),
        ("held when all had ended", _counts(held) if held else "nothing: every block is free again"),
        ("seconds", ", ".join(f"{what} {took:.1f}" for what, took in result.seconds.items())),
        ("model", _model(result.model)),
        ("text", result.source.splitlines()[0]),
        ("seed", str(result.seed)),
        ("digest", result.digest),
        ("kernels", result.kernels),
        ("not active, not run", ", ".join(result.not_run)),
        ("ledger", f"{result.ledger} ({result.events} events)"),
        ("look back", f"kvsweep log replay {result.ledger} --verify"),
    ):
        table.add_row(name, value)
    return table
