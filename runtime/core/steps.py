"""Open steps: which generation and which tail each was handed. Not logged; what they hold back is (BlocksRetired)."""

from collections.abc import Collection

from msgspec import Struct

from kvsweep.ledger.errors import Busy, UsageError
from kvsweep.ledger.ids import RequestKey


class HandedOut(Struct, frozen=True, kw_only=True):
    """What a step reads of one request: one committed generation and the tail as it was."""

    generation: int
    row: int
    tail: tuple[int, ...]  # logical blocks of the tail


class OpenSteps:
    """A set of open steps a generation; no counters and no watermark, since steps end in any order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[int, dict[RequestKey, HandedOut]] = {}
        self._fences: dict[tuple[RequestKey, int], set[int]] = {}
        self._next = 1
        # Of turns that are staged: fences to be bound, and to be forgotten, once they are adopted.
        self._made: list[tuple[RequestKey, int]] = []
        self._opened: list[tuple[RequestKey, int]] = []

    def fork(self) -> "OpenSteps":
        """Another set with the same open steps and fences."""
        twin = OpenSteps(self.limit)
        twin._open, twin._next = dict(self._open), self._next
        twin._fences = {fence: set(steps) for fence, steps in self._fences.items()}
        return twin

    def described(self) -> dict[int, tuple[list[tuple[RequestKey, HandedOut]], list[tuple[RequestKey, int]]]]:
        """Each open step: what it was handed, and which fences wait for it. Nothing else tells steps apart."""
        return {
            number: (
                sorted(handed.items(), key=lambda item: item[0]),
                sorted(fence for fence, waits_for in self._fences.items() if number in waits_for),
            )
            for number, handed in self._open.items()
        }

    def begin(self, handed: dict[RequestKey, HandedOut]) -> int:
        if len(self._open) >= self.limit:
            raise Busy("open steps", self.limit)
        number = self._next
        self._next += 1
        self._open[number] = handed
        return number

    def end(self, number: int) -> tuple[RequestKey, ...]:
        """Forget the step; returns the requests it read. A step ends once."""
        if number not in self._open:
            raise UsageError(f"step {number}: expected one of the open steps {sorted(self._open)}")
        for waiting in self._fences.values():
            waiting.discard(number)
        return tuple(self._open.pop(number))

    def reads(self, request: RequestKey, generation: int) -> bool:
        """Whether an open step was handed this generation."""
        for handed in self._open.values():
            found = handed.get(request)
            if found is not None and found.generation == generation:
                return True
        return False

    def writes(self, request: RequestKey) -> bool:
        """Whether an open step was handed the request's tail: it may read or write it."""
        return any(request in handed for handed in self._open.values())

    # ---- fences

    def stage(self, made: list[tuple[RequestKey, int]], opened: list[tuple[RequestKey, int]]) -> None:
        """Fences that a turn closed and opened; they are bound when it is adopted."""
        self._made += made
        self._opened += opened

    def adopt(self) -> None:
        """Bind the new fences to every step that is open on their request now, and forget those that have opened."""
        for request, number in self._made:
            waits_for = {step for step, handed in self._open.items() if request in handed}
            self._fences[(request, number)] = waits_for
        for fence in self._opened:
            self._fences.pop(fence, None)
        self.discard()

    def discard(self) -> None:
        self._made.clear()
        self._opened.clear()

    def fence_is_quiet(self, request: RequestKey, number: int, made: Collection[tuple[RequestKey, int]]) -> bool:
        """Whether no open step waits behind the fence.

        made  fences of the turn that asks. Those, and what is staged, are not bound yet: whatever is open holds them
        """
        if (request, number) in made or (request, number) in self._made:
            return not self.writes(request)
        return not self._fences.get((request, number))

    def open_numbers(self, request: RequestKey) -> tuple[int, ...]:
        return tuple(number for number, handed in self._open.items() if request in handed)

    @property
    def numbers(self) -> frozenset[int]:
        """Open steps."""
        return frozenset(self._open)

    def __len__(self) -> int:
        return len(self._open)
