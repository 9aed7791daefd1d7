"""Making a damaged ledger one that can be read and gone on with: its whole groups up to the first that is damaged.

A ledger is a prefix of what happened, so any prefix of its groups is one too: a group is stored all or not at all, and
nobody ever saw half of one. What stood behind the damage cannot be folded without what is missing, and is left out.
The files that were there are kept beside the repaired one under other names.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from kvsweep.ledger.errors import LogCorrupt, LogError
from kvsweep.ledger.events import Event
from kvsweep.ledger.store import encoding
from kvsweep.ledger.store.commit import Intake, Names
from kvsweep.ledger.store.database import PAGE_BYTES, Database, drop_lock, expect_whole, take_lock
from kvsweep.ledger.store.files import UNREAD_COMMIT, begin, file_of, files_of, open_segment
from kvsweep.ledger.store.format import pack
from kvsweep.ledger.store.log import Position, Snapshot
from kvsweep.ledger.store.segment import Segment, insert_snapshot
from kvsweep.ledger.store.wal import has_unread_commit

WHOLE: Final = "nothing is damaged: nothing was changed"
DROPPED: Final = (
    "every group up to event {kept} is whole, and a prefix of a ledger is what a process left that ended there; what "
    "stood behind cannot be folded without what is missing. Ranks and the producer have to be started anew before it "
    "is gone on with, because they may know of what was dropped"
)
REBUILT: Final = "no event is damaged: the files were written anew from the events"


class Repaired(Struct, frozen=True, kw_only=True):
    """What a repair did. `position` and `fault` name the first damage; None where there was none."""

    path: str
    changed: bool
    kept: int  # events
    last: Position  # of those that are kept
    dropped: int | None  # events that stood behind the damage; None where that cannot be known
    position: Position | None
    fault: str
    safe: str  # why what is left is a ledger, and what has to be done before it is gone on with
    saved: tuple[str, ...]  # the files that were there before, under their new names


class _Copy:
    """The repaired ledger while it is written, beside the damaged one."""

    def __init__(self, path: str, first: Segment) -> None:
        self.path = f"{path}.repaired"
        header = first.header
        base = first.snapshot(header.first - 1) if header.first > 1 else None
        if header.first > 1 and base is None:
            raise LogError(f"ledger {path} cannot be repaired: the snapshot before its first event is damaged")
        begin(self.path, first=header.first, snapshot=base)
        self._db = Database(self.path, read_only=False)
        self._db.raw.execute("PRAGMA synchronous = OFF")  # synced once, at the end
        self._names, self._intake = Names(self._db.raw), Intake(self._db)
        self.first, self.last = header.first, header.first - 1

    def add(self, events: list[Event], time: int) -> None:
        part = encoding.encode_part(events)
        numbers, new = self._names.assign(part.names)
        self._intake.store(pack([part], numbers, self.last + 1, time), new)
        self._names.keep(numbers, new)
        self.last += len(events)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        insert_snapshot(self._db.raw, snapshot)

    def close(self) -> None:
        self._db.close()
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def repair(path: str, *, progress: Callable[[Position], None] | None = None) -> Repaired:
    """Repair the ledger at `path`, which nobody may be writing. Where nothing is damaged, nothing is changed.

    progress  told the position now and then

    Raises LogError where there is no ledger, its first file cannot be opened at all, or it has a writer.
    """
    path = os.path.realpath(path)
    if not files_of(path):
        raise LogError(f"ledger {path} does not exist")
    lock = take_lock(path)
    try:
        return _repair(path, progress)
    finally:
        drop_lock(path, lock)


def _repair(path: str, progress: Callable[[Position], None] | None) -> Repaired:
    numbers = files_of(path)
    copy: _Copy | None = None
    fault: LogCorrupt | None = None
    known: Position | None = None  # last position that any file claims
    structure = ""
    try:
        for number in numbers:
            try:
                with contextlib.closing(open_segment(file_of(path, number), read_only=True, whole=False)) as segment:
                    copy = copy or _Copy(path, segment)
                    with contextlib.suppress(LogError):
                        known = max(known or 0, segment.last())
                    _expect_next(copy, segment)
                    for events, time in _groups_of(segment):
                        copy.add(events, time)
                        if progress is not None:
                            progress(copy.last)
                    snapshot = segment.snapshot(copy.last)
                    if snapshot is not None:
                        copy.add_snapshot(snapshot)
                    structure = structure or _structure_of(segment)
            except LogError as error:
                if copy is None:
                    raise
                fault = error if isinstance(error, LogCorrupt) else LogCorrupt(copy.last + 1, str(error))
                break
    except BaseException:
        if copy is not None:
            copy.close()
            os.unlink(copy.path)
        raise
    if copy is None:
        raise LogError(f"ledger {path} does not exist")
    copy.close()
    if fault is None and not structure:
        os.unlink(copy.path)
        return _answer(path, copy, known, None, "", WHOLE, ())
    saved = _swap(path, numbers, copy.path)
    if fault is None:
        return _answer(path, copy, known, None, structure, REBUILT, saved)
    known = None if UNREAD_COMMIT in fault.detail else known
    return _answer(path, copy, known, fault.position, fault.detail, DROPPED.format(kept=copy.last), saved)


def _answer(
    path: str,
    copy: _Copy,
    known: Position | None,
    position: Position | None,
    fault: str,
    safe: str,
    saved: tuple[str, ...],
) -> Repaired:
    return Repaired(
        path=path,
        changed=bool(saved),
        kept=copy.last - copy.first + 1,
        last=copy.last,
        dropped=None if known is None else max(0, known - copy.last),
        position=position,
        fault=fault,
        safe=safe,
        saved=saved,
    )


def _expect_next(copy: _Copy, segment: Segment) -> None:
    if segment.header.first != copy.last + 1:
        raise LogCorrupt(copy.last + 1, f"the event is missing, the next file begins with {segment.header.first}")


def _groups_of(segment: Segment) -> Iterator[tuple[list[Event], int]]:
    """(events, time) of every whole group, until the first that is damaged, for which LogCorrupt is raised."""
    yield from segment.groups()
    if has_unread_commit(segment.path, PAGE_BYTES):
        raise LogCorrupt(segment.last() + 1, UNREAD_COMMIT)


def _structure_of(segment: Segment) -> str:
    """What is wrong with a file whose events are all whole, such as an index."""
    found = segment.damage()
    if found is not None:
        return found[1]
    try:
        expect_whole(segment.db)
        segment.expect_places()
    except LogError as error:
        return error.detail if isinstance(error, LogCorrupt) else str(error)
    return ""


def _swap(path: str, numbers: list[int], repaired: str) -> tuple[str, ...]:
    """Put the repaired file in the place of the others, which are kept."""
    suffix = ".damaged"
    while any(os.path.exists(file_of(path, number) + suffix) for number in numbers):
        suffix += "+"
    saved = []
    for number in reversed(numbers):  # the first goes last: killed in between, the ledger still begins there
        for part in ("-wal", "-shm", ""):
            old = file_of(path, number) + part
            if os.path.exists(old):
                os.rename(old, f"{file_of(path, number)}{suffix}{part}")
        saved.append(file_of(path, number) + suffix)
    os.rename(repaired, path)
    return tuple(reversed(saved))
