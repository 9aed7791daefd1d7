"""The state that stands. Drafts are made on it: `stage` makes what they come to part of it, `adopt` keeps what was
staged, `discard` takes it back. A state that somebody has looked at stays what it was.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from kvsweep.ledger import areas as a
from kvsweep.ledger.draft import Draft
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.ownership import Ownership
from kvsweep.ledger.state import EMPTY, RequestState, State

_GONE: Final = object()


class Index:
    """What anybody holds, over the whole pool: a mark a device block of each group, a count a CPU block.

    It follows from the relation and is changed in place; `undo` takes changes back.
    """

    __slots__ = ("cpu", "device", "journal")

    def __init__(self, device: Sequence[int], cpu: int) -> None:
        self.device = [bytearray(blocks) for blocks in device]
        self.cpu = bytearray(2 * cpu)
        self.journal: list[tuple[bytearray, bytes, bytes | bool]] = []

    def fork(self) -> "Index":
        twin = Index((), 0)
        twin.device, twin.cpu = [bytearray(marks) for marks in self.device], bytearray(self.cpu)
        return twin

    def mark(self, group: int, blocks: bytes, held: bool) -> None:
        """Raises ValueError for a block that is so already, or outside the pool."""
        marks = self.device[group]
        wrong = a.mark(marks, blocks, held)
        if wrong >= 0:
            block = int.from_bytes(blocks[4 * wrong : 4 * wrong + 4], "little", signed=True)
            raise ValueError(f"group {group}: block {block} is {'held already' if held else 'held by nobody'}")
        self.journal.append((marks, blocks, held))

    def count(self, add: bytes, drop: bytes) -> bytes:
        """CPU blocks that nobody holds any more."""
        freed = a.count(self.cpu, add, drop)
        self.journal.append((self.cpu, add, drop))
        return freed

    def undo(self, to: int) -> None:
        """Back to when the journal was so long."""
        while len(self.journal) > to:
            table, ids, what = self.journal.pop()
            if isinstance(what, bool):
                a.mark(table, ids, not what)
            else:
                a.count(table, what, ids)


class Standing:
    """The state as records that one owner changes. Drafts are made on it one after the other."""

    def __init__(self, state: State = EMPTY) -> None:
        relation = state.ownership
        self.pool = state.pool
        self.requests = state.requests
        self.held, self.areas = relation.held, relation.areas
        self.shared, self.shared_sources = relation.shared, relation.shared_sources
        self._seen: State | None = state  # what was handed out, whose dicts may not change any more
        self._index: Index | None = None  # None: not known, and made again when it is needed
        self._undo: list[tuple[Any, Any, Any]] = []
        self._made_late = False  # the index knows of what is staged, and its journal does not
        self._staged_from = 0  # length of the index's journal when the first draft was staged
        self.live = dict.fromkeys(
            sorted(
                opened.operation.operation_id
                for request in state.requests.values()
                for opened in (*request.open_operations(), *request.settling)
            )
        )
        """Open and settling operations, ascending: those that ranks may still be spoken to about."""
        self.began: list[int] = []  # by what is staged
        self._ended: list[int] = []

    def fork(self) -> "Standing":
        """The same now, apart from here on. Nothing may be staged."""
        twin = Standing.__new__(Standing)
        twin.__dict__.update(self.__dict__)
        twin._seen = self.state  # both copy before they change
        twin._index = self._index.fork() if self._index is not None else None
        twin._undo, twin.began, twin._ended, twin.live = [], [], [], dict(self.live)
        return twin

    @property
    def state(self) -> State:
        """What was adopted, as a value; a staged draft is no part of it."""
        if self._undo:
            return self._before_staged()
        if self._seen is None:
            relation = Ownership(
                held=self.held, areas=self.areas, shared=self.shared, shared_sources=self.shared_sources
            )
            self._seen = State(pool=self.pool, requests=self.requests, ownership=relation)
        return self._seen

    def request(self, key: RequestKey) -> RequestState | None:
        """The state of exactly this life, or None."""
        found = self.requests.get(key.request_id)
        return found if found is not None and found.key == key else None

    @property
    def staged(self) -> bool:
        return bool(self._undo)

    def draft(self) -> Draft:
        return Draft(self)

    def index(self) -> Index:
        """Made from the relation where it is not known."""
        if self._index is None:
            run = self.pool.run
            if run is None:
                raise LookupError("the pool is not configured: a ledger begins with RunConfigured")
            found = Index(run.device_blocks, run.cpu_total_blocks)
            for groups in self.areas.values():
                for group, own in enumerate(groups):
                    found.mark(group, own.blocks, True)
            for group, blocks in enumerate(self.shared):
                found.mark(group, blocks.blocks, True)
            for holders in self.held.values():
                for holding in holders.values():
                    found.count(holding.sources, b"")
            found.journal.clear()
            self._index, self._made_late = found, self.staged
        return self._index

    @property
    def journalled(self) -> int:
        """Changes of the index that are not adopted yet."""
        return len(self._index.journal) if self._index is not None else 0

    def undo(self, to: int) -> None:
        """Take back changes of the index, down to so many."""
        if self._index is not None:
            self._index.undo(to)

    def forget_index(self) -> None:
        """Something stopped in the middle of a change: what was followed is not to be trusted."""
        self._index = None

    # ---- drafts

    def stage(self, draft: Draft) -> None:
        """What the draft comes to stands from here on, until it is adopted or discarded with all that is staged."""
        if self._seen is not None:  # somebody has these
            self.requests, self.held, self.areas = dict(self.requests), dict(self.held), dict(self.areas)
            self._seen = None
        undo = self._undo
        if not undo:
            undo.append((None, None, (self.pool, self.shared, self.shared_sources)))
            self._staged_from = draft.journal_from
        if draft.requests:
            _merge(self.requests, draft.requests, undo)
        if draft.held:
            _merge(self.held, draft.held, undo)
            _merge(self.areas, draft.areas, undo)
            self.shared, self.shared_sources = draft.shared, draft.shared_sources
        self.pool = draft.pool
        self.began += draft.began
        self._ended += draft.ended

    def adopt(self) -> None:
        """What was staged is the state."""
        self._undo.clear()
        self._made_late = False
        if self._index is not None:
            self._index.journal.clear()
        for number in self.began:
            self.live[number] = None
        for number in self._ended:
            self.live.pop(number, None)
        self.began.clear()
        self._ended.clear()

    def discard(self) -> None:
        """What was staged did not happen."""
        if self._made_late:
            self.forget_index()
        self.undo(self._staged_from)
        undo = self._undo
        while len(undo) > 1:
            mapping, key, old = undo.pop()
            _put(mapping, key, old)
        if undo:
            self.pool, self.shared, self.shared_sources = undo.pop()[2]
        self._seen = None
        self.began.clear()
        self._ended.clear()

    def _before_staged(self) -> State:
        requests, held, areas = dict(self.requests), dict(self.held), dict(self.areas)
        twin: dict[int, MutableMapping[Any, Any]] = {
            id(self.requests): requests,
            id(self.held): held,
            id(self.areas): areas,
        }
        for mapping, key, old in reversed(self._undo[1:]):
            _put(twin[id(mapping)], key, old)
        pool, shared, sources = self._undo[0][2]
        relation = Ownership(held=held, areas=areas, shared=shared, shared_sources=sources)
        return State(pool=pool, requests=requests, ownership=relation)


def _put(mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    if value is _GONE:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _merge(mapping: MutableMapping[Any, Any], changed: Mapping[Any, Any], undo: list[tuple[Any, Any, Any]]) -> None:
    """The changed entries; None takes one out."""
    for key, value in changed.items():
        undo.append((mapping, key, mapping.get(key, _GONE)))
        if value:
            mapping[key] = value
        else:
            mapping.pop(key, None)
