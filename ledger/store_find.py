"""Questions to the SQLite file by its plain columns: bodies are read only of the rows that are given back."""

import heapq
import struct
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, TypeAlias

from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.query import NAMES_BLOCKS, SENT_TO_RANKS, TURNED_BACK, Where
from kvsweep.ledger.store import Position, Record
from kvsweep.ledger.store_format import COLUMNS, Row, record_of

CHUNK: Final = 256  # records a query: a reader holds no transaction while its caller works

Fetch: TypeAlias = Callable[[str, tuple[object, ...]], tuple[list[Row], Exception | None]]
"""Rows of a statement up to the first that cannot be read, and why it cannot."""

Fail: TypeAlias = Callable[[Exception, Position], NoReturn]

_FROM: Final = f"SELECT {COLUMNS} FROM log LEFT JOIN requests USING (rid) WHERE "
_TOLD: Final = sorted(SENT_TO_RANKS | TURNED_BACK)


def find(fetch: Fetch, fail: Fail, where: Where, until: Position, newest_first: bool) -> Iterator[Record]:
    """Records up to `until` that meet the conditions, and of ranks and blocks some that only may; in order of position.

    fetch, fail  how the file is read, and what is raised for a row that cannot be read
    """
    if where.until is not None:
        until = min(until, where.until)
    conditions, arguments = _conditions(where)
    if where.lives is None:
        return _scan(fetch, fail, conditions, arguments, where.after, until, newest_first)
    lives = [_life(fetch, fail, life, conditions, arguments, where.after, until, newest_first) for life in where.lives]
    return heapq.merge(*lives, key=lambda record: -record.position if newest_first else record.position)


def _conditions(where: Where) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    arguments: list[object] = []
    if where.types is not None:
        conditions.append(f"type IN ({_marks(len(where.types))})")
        arguments += where.types
    if where.operation is not None:
        conditions.append("operation_id = ?")
        arguments.append(where.operation)
    if where.rank is not None:
        conditions.append(f"(rank = ? OR type IN ({_marks(len(_TOLD))}))")
        arguments += [where.rank, *_TOLD]
    if where.block is not None:
        conditions.append(f"type IN ({_marks(len(NAMES_BLOCKS))}) AND instr(body, ?)")
        arguments += [*NAMES_BLOCKS, struct.pack("<i", where.block.block)]
    return conditions, arguments


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _scan(
    fetch: Fetch,
    fail: Fail,
    conditions: list[str],
    arguments: list[object],
    after: Position,
    until: Position,
    newest_first: bool,
) -> Iterator[Record]:
    way = "DESC" if newest_first else "ASC"
    parts = ["position > ?", "position <= ?", *conditions]
    sql = f"{_FROM}{' AND '.join(parts)} ORDER BY position {way} LIMIT {CHUNK}"
    while after < until:
        rows, error = fetch(sql, (after, until, *arguments))
        for row in rows:
            yield record_of(row)
            if newest_first:
                until = row[0] - 1
            else:
                after = row[0]
        if error is not None:
            fail(error, after + 1)
        if len(rows) < CHUNK:
            return


def _life(
    fetch: Fetch,
    fail: Fail,
    life: RequestKey,
    conditions: list[str],
    arguments: list[object],
    after: Position,
    until: Position,
    newest_first: bool,
) -> Iterator[Record]:
    """By the index over the life's own numbers."""
    parts = ["log.rid = (SELECT rid FROM requests WHERE id = ?)", "epoch = ?", "position > ?", "position <= ?"]
    way, beyond = ("DESC", "seq < ?") if newest_first else ("ASC", "seq > ?")
    sql = f"{_FROM}{' AND '.join([*parts, beyond, *conditions])} ORDER BY seq {way} LIMIT {CHUNK}"
    last = 2**63 - 1 if newest_first else -1
    while True:
        named = (life.request_id, life.request_epoch, after, until, last)
        rows, error = fetch(sql, (*named, *arguments))
        for row in rows:
            last = row[3]
            yield record_of(row)
        if error is not None:
            fail(error, after + 1)
        if len(rows) < CHUNK:
            return
