"""Giving blocks back when nothing can be recorded any more: the engine that we are guests of must not starve.

The ledger's own way, retire after commit and fence, ends with the ledger. What is left is what the ranks say of their
steps. A worker performs everything that a step carries before its model runs, and no plan leaves any more: once every
rank has done a step, nothing that was sent with it or before it reads or writes, and no earlier view is read. A block
that no running request's view names from a step on is therefore quiet when that step has been done.
"""

import logging
from collections.abc import Iterable, Set

import numpy as np

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.ids import Physical, Rows, int32_bytes
from kvsweep.ledger.messages import Release
from kvsweep.runtime.vllm.pools import EnginePools

_LOG = logging.getLogger("kvsweep")


class Unrecorded:
    """One engine's. Nothing is given back before `note` is called."""

    def __init__(self, pools: EnginePools, ranks: frozenset[int]) -> None:
        self._pools = pools
        self._done = dict.fromkeys(ranks, 0)  # rank -> last step that it has done
        self._said = False
        self._since: dict[int, int] = {}  # block of ours -> the last step that may need it

    @property
    def waiting(self) -> bool:
        """Whether blocks come back when the ranks have done the steps that were begun."""
        return bool(self._since)

    def note(self, views: Set[int], step: int, reason: LogError) -> None:
        """A step was begun. The first time, the engine's own log says why nothing is recorded: a summary is a choice.

        views  what the views of running requests name; all else is needed by no later step
        """
        if not self._said:
            _LOG.warning("kvsweep compacts nothing any more, vLLM serves on without it: %s", reason)
            self._said = True
        for block in self._pools.ours - views:
            self._since.setdefault(block, step)

    def end(self, rank: int, step: int) -> None:
        """This rank has done the step, and every one before it."""
        self._done[rank] = max(self._done[rank], step)

    def give_back(self) -> None:
        """Drop our references of what is quiet. The CPU tier is left as it is: nothing is stored there any more."""
        done = min(self._done.values())
        quiet = [block for block, step in self._since.items() if step <= done]
        for block in quiet:
            del self._since[block]
        if quiet:
            self._pools.release(Release(device=(int32_bytes(quiet),), cpu=b""))


def named(views: Iterable[Rows[Physical]]) -> set[int]:
    """Blocks that these tables name, in any layer."""
    return {block for view in views for block in np.unique(view.ids).tolist()}
