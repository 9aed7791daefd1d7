"""What of the ranks' answers is believed: judged item by item, before anything acts on one.

Answers come through vLLM's own messages, which check no types. What is not as declared is counted, never raised.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsweep.ledger.errors import Malformed
from kvsweep.ledger.ids import RequestKey
from kvsweep.ledger.messages import Done
from kvsweep.runtime.core.well_formed import check_message, expect_key
from kvsweep.transports.vllm.messages import Ack, Completion, Scores


class Answers:
    """One joined answer. Read each property once.

    refused  items so far that are not of the declared types and shapes
    """

    def __init__(self, ack: Ack, *, ranks: frozenset[int], layers: int) -> None:
        """
        ranks   those of this engine; well-formed reports of others are passed over
        layers  rows that scores have
        """
        self.refused = 0
        self._ack, self._ranks, self._layers = ack, ranks, layers

    @property
    def completions(self) -> Iterator[Completion]:
        """Final reports with the types of their declarations, whoever sends them."""
        for item in self._items(self._ack.completions):
            if isinstance(item, Completion) and _is_done(item.done) and type(item.digest) is str:
                yield item
            else:
                self.refused += 1

    @property
    def scores(self) -> Iterator[tuple[RequestKey, int, npt.NDArray[np.float32]]]:
        """(request, rank, float32[layers, blocks]): finite or not, which the selection says by name."""
        for item in self._items(self._ack.scores):
            if not _are_scores(item, self._layers):
                self.refused += 1
            elif item.rank in self._ranks:
                values = np.frombuffer(item.values, dtype="<f4")
                yield item.request, item.rank, values.reshape(self._layers, item.blocks)

    def steps(self, begun: int) -> Iterator[tuple[int, int]]:
        """(rank, step). begun: the last step there is; one that claims a later one is passed over."""
        for item in self._items(self._ack.steps):
            match item:
                case (int(rank), int(step)):
                    if rank in self._ranks and step <= begun:
                        yield rank, step
                case _:
                    self.refused += 1

    @property
    def counts(self) -> Iterator[tuple[int, dict[str, int]]]:
        """(rank, its running counts)."""
        for item in self._items(self._ack.counts):
            match item:
                case (int(rank), tuple(pairs)) if all(map(_is_count, pairs)):
                    if rank in self._ranks:
                        yield rank, dict(pairs)
                case _:
                    self.refused += 1

    def _items(self, field: object) -> Iterable[Any]:
        if isinstance(field, tuple):
            return field
        self.refused += 1
        return ()


def _is_done(message: object) -> bool:
    try:
        check_message(message)
    except Malformed:
        return False
    return isinstance(message, Done)


def _is_key(request: object) -> bool:
    try:
        expect_key("scores", request)
    except Malformed:
        return False
    return True


def _are_scores(item: object, layers: int) -> bool:
    if not isinstance(item, Scores) or not _is_key(item.request):
        return False
    fields: tuple[object, ...] = (item.rank, item.blocks, item.values)
    match fields:
        case int(), int(blocks), bytes(values):
            return blocks > 0 and len(values) == 4 * layers * blocks
        case _:
            return False


def _is_count(pair: object) -> bool:
    match pair:
        case (str(), int()):
            return True
        case _:
            return False
