"""The sequence check of a ledger's writer: which number each stream's next event must have."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kvsweep.ledger.errors import SequenceConflict
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.store.log import Stream

STREAMS: Final = 16384  # remembered; of those that began first the store is asked again


class Sequences:
    """Next sequence number of the latest streams. Knows whether it knows all, so that a new stream costs no question.

    look_up  the stored stream's next number, 0 where there is none; asked only of streams that are not known
    complete  whether `streams` are all that are stored
    """

    def __init__(
        self,
        streams: Iterable[Stream],
        look_up: Callable[[RequestKey], int],
        *,
        limit: int = STREAMS,
        complete: bool = True,
    ) -> None:
        self._look_up, self._limit = look_up, limit
        self._next: dict[RequestKey, int] = {}
        self._complete = complete
        self.advance({stream.request: stream.events for stream in streams})

    def check(self, batch: Sequence[Event]) -> dict[RequestKey, int]:
        """Next numbers once the batch is stored. Raises SequenceConflict with the expected and the found number."""
        following: dict[RequestKey, int] = {}
        request, expected = None, 0
        for event in batch:
            if event.request is not request:  # one turn's events share the key, and a key's hash costs
                if request is not None:
                    following[request] = expected
                request = event.request
                known = following.get(request)
                expected = self._expected(event) if known is None else known
            if event.seq != expected:
                raise SequenceConflict(request, expected, event.seq)
            expected += 1
        if request is not None:
            following[request] = expected
        return following

    def admit(self, batch: Sequence[Event], *, dense: bool = False) -> None:
        """`check` and `advance` in one step, for a writer to whom nothing can happen in between.

        dense  whether the events are known to be of one life, and their numbers to follow each other
        """
        request = batch[0].request
        known = self._next.get(request)
        if dense and known == batch[0].seq:
            self._next[request] = known + len(batch)
            return
        expected = self._expected(batch[0]) if known is None else known
        for event in batch:
            if event.request is not request:
                self.advance(self.check(batch))
                return
            if event.seq != expected:
                raise SequenceConflict(request, expected, event.seq)
            expected += 1
        self._next[request] = expected
        if known is None:
            self._forget()

    def advance(self, following: dict[RequestKey, int]) -> None:
        """The batch is in the writer's hands."""
        self._next.update(following)
        self._forget()

    def _forget(self) -> None:
        while len(self._next) > self._limit:
            del self._next[next(iter(self._next))]
            self._complete = False

    def _expected(self, event: Event) -> int:
        known = self._next.get(event.request)
        if known is not None:
            return known
        # A stream that begins is new: were it not, its number would be in the store twice, which refuses that itself.
        return 0 if self._complete or event.seq == 0 else self._look_up(event.request)
