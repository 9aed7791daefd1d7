"""What `kvsweep bench log` says: a row for every path, size and peer."""

from __future__ import annotations

from msgspec import Struct
from rich.table import Table


class LogRow(Struct, frozen=True, kw_only=True):
    """Ours against one peer, medians or the named quantile over the same rounds of one run.

    `limit` is the goal in words and `limit_ms` the most that ours may take by it; 1 and more of `of_limit` meets it.
    """

    path: str
    size: str
    ours_ms: float
    peer: str
    peer_ms: float
    ratio: float  # peer_ms / ours_ms
    limit: str
    limit_ms: float
    of_limit: float  # limit_ms / ours_ms


class LogReport(Struct, frozen=True, kw_only=True):
    """`figures` has what is no time: bytes, events a second and losses. `not_run` says why a peer was left out."""

    machine: dict[str, str | int]
    rows: list[LogRow]
    figures: dict[str, float]
    not_run: dict[str, str]


def log_table(report: LogReport) -> Table:
    table = Table("path", "size", "ours ms", "peer", "peer ms", "ratio", "limit", "of limit")
    table.title = f"bench log: {', '.join(str(value) for value in report.machine.values())}"
    for row in report.rows:
        table.add_row(
            row.path,
            row.size,
            f"{row.ours_ms:,.4g}",
            row.peer,
            f"{row.peer_ms:,.4g}",
            f"{row.ratio:,.2f}",
            row.limit,
            f"{row.of_limit:.2f}",
        )
    for name, value in report.figures.items():
        table.add_row(name, "", f"{value:,.4g}", "", "", "", "", "")
    for name, why in report.not_run.items():
        table.add_row("not run", "", "", name, "", "", why, "")
    return table
