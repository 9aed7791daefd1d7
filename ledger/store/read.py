"""Reading a ledger across its files: everything, one life, what meets conditions, and what is damaged."""

import heapq
from collections import Counter
from collections.abc import Iterator

from kvsweep.ledger.errors import LogCorrupt
from kvsweep.ledger.ids import POOL, RequestKey
from kvsweep.ledger.store.files import LedgerFiles
from kvsweep.ledger.store.log import Piece, Position, Record, Snapshot, Stream
from kvsweep.ledger.store.query import Where, may_match
from kvsweep.ledger.store.segment import Segment


def read_all(files: LedgerFiles, after: Position, until: Position) -> Iterator[Record]:
    """Records beyond `after` up to `until`. Raises LogCorrupt at the first that is missing or not as written."""
    for segment, low, high in _parts(files, after, until):
        yield from segment.read_all(low, high)


def pieces_in(files: LedgerFiles, after: Position, until: Position) -> Iterator[Piece]:
    """The same, undecoded."""
    for segment, low, high in _parts(files, after, until):
        yield from segment.pieces(low, high)


def read_one(files: LedgerFiles, request: RequestKey, after: Position, until: Position) -> Iterator[Record]:
    """Records of one life. Raises LogCorrupt where its numbers are not dense or another's event stands in its place."""
    expected = 0 if after == 0 and files.header().first == 1 else None
    for segment, low, high in _parts(files, after, until):
        for record in segment.read_one(request, low, high):
            event = record.event
            if event.request != request or (expected is not None and event.seq != expected):
                wanted = f"event {'?' if expected is None else expected} of {request}"
                raise LogCorrupt(record.position, f"expected {wanted}, got {event.seq} of {event.request}")
            expected = event.seq + 1
            yield record


def find_in(files: LedgerFiles, where: Where, until: Position, newest_first: bool) -> Iterator[Record]:
    """Records that meet the conditions; see `LogStore.find`."""
    if where.until is not None:
        until = min(until, where.until)
    if where.lives is None:
        for segment in files.segments(newest_first=newest_first):
            if segment.header.first <= until:
                yield from segment.find(where, min(until, segment.last()), newest_first)
        return
    lives = [_life(files, life, where, until, newest_first) for life in dict.fromkeys(where.lives)]
    yield from heapq.merge(*lives, key=lambda record: -record.position if newest_first else record.position)


def _life(files: LedgerFiles, life: RequestKey, where: Where, until: Position, newest_first: bool) -> Iterator[Record]:
    found = (record for record in read_one(files, life, where.after, until) if may_match(record.event, where))
    return reversed(list(found)) if newest_first else found


def _parts(files: LedgerFiles, after: Position, until: Position) -> Iterator[tuple[Segment, Position, Position]]:
    """Files with events beyond `after` up to `until`, and between which positions: each goes on where one ended."""
    last = None
    for segment in files.segments():
        first, end = segment.header.first, segment.last()
        if last is not None and first != last + 1:
            raise LogCorrupt(last + 1, f"the event is missing, the next file begins with {first}")
        last = end
        if end > after and first <= until:
            yield segment, after, min(until, end)
    if last is not None and last < until:
        raise LogCorrupt(last + 1, f"the event is missing, the last one stands at {until}")


def streams_in(files: LedgerFiles) -> list[Stream]:
    """Every stream, in the order of its first event that is kept."""
    found: dict[RequestKey, Stream] = {}
    for segment in files.segments():
        for stream in segment.streams():
            found[stream.request] = stream  # a later file knows more of it, and its place stays
    return list(found.values())


def tally_in(files: LedgerFiles) -> list[tuple[str, int, int]]:
    """(event type, events, bytes) over all files."""
    events, sizes = Counter[str](), Counter[str]()
    for segment in files.segments():
        for name, number, size in segment.tally():
            events[name] += number
            sizes[name] += size
    return [(name, events[name], sizes[name]) for name in events]


def following_in(files: LedgerFiles, request: RequestKey) -> int:
    """Number of a stream's next event; 0 for a stream that nothing is known of."""
    for number in reversed(files.numbers):
        with files.using(number) as segment:
            following = segment.following(request)
        if following:
            return following
    base = base_of(files)
    if base is None:
        return 0
    if request == POOL:
        return base.state.pool.seq
    known = base.state.request(request)
    return 0 if known is None else known.seq


def latest_in(files: LedgerFiles, limit: int) -> tuple[list[Stream], bool]:
    """(the streams that began last, `limit` or somewhat more, and whether they are all that ever were)."""
    found: dict[RequestKey, Stream] = {}
    complete = files.header().first == 1
    for number in reversed(files.numbers):
        with files.using(number) as segment:
            for stream in segment.latest(limit):
                found.setdefault(stream.request, stream)
        if len(found) >= limit:
            return list(found.values())[::-1], False
    base = base_of(files)
    if base is not None:
        lives = {request.key: request.seq for request in base.state.requests.values()}
        for key, seq in {POOL: base.state.pool.seq, **lives}.items():
            found.setdefault(key, Stream(request=key, events=seq, last=base.position))
    return list(found.values())[::-1], complete


def base_of(files: LedgerFiles) -> Snapshot | None:
    """What the fold gave before the first event that is kept; None where that is the beginning."""
    first = files.header().first
    return snapshot_in(files, first - 1) if first > 1 else None


def snapshot_in(files: LedgerFiles, until: Position) -> Snapshot | None:
    """The newest snapshot at or before a position."""
    for number in reversed(files.numbers):
        with files.using(number) as segment:
            found = segment.snapshot(until) if segment.header.first - 1 <= until else None
        if found is not None:
            return found
    return None


def damage_of(files: LedgerFiles) -> tuple[Position | None, str] | None:
    """The first fault in the structure of a file, in what stands beside the events, or between two files."""
    try:
        for segment in files.segments():
            found = segment.damage()
            if found is not None:
                return found
            segment.expect_places()
        for _ in _parts(files, 0, 0):
            pass
    except LogCorrupt as error:
        return error.position, error.detail
    return None
