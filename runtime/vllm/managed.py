"""One request of vLLM's under the coordinator: which life it is, and how far its blocks have come."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from kvsweep.ledger.ids import Logical, RequestKey, Rows
from kvsweep.runtime.vllm.pools import EngineBlock


class EngineRequest(Protocol):
    """vLLM's Request, as far as it is looked at."""

    request_id: str
    num_computed_tokens: int
    num_prompt_tokens: int


@dataclass
class Managed:
    """`table` is vLLM's own list of the request's blocks: another list there means that it was preempted since."""

    request: EngineRequest
    key: RequestKey | None = None  # None: no life is open; vLLM serves it as it always does
    alone: bool = False  # no life can ever be opened for it: vLLM serves it alone
    table: list[EngineBlock] | None = None
    opened: int = 0  # logical blocks that the coordinator knows of
    sealed: int = 0  # of those: whole, and handed to a store
    replaced: int = 0  # leading logical blocks that the view stands for: vLLM's table does not name them any more
    revision: int = 0  # of its last selection
    next_round: int = 0  # engine step
    started: int = 0  # engine step in which its last upload began
    attempt: int = 0  # of a keep or a pack
    want: Rows[Logical] | None = None  # selected, and not yet kept
    kept_live: int = 0
    fullest: int = 0
    scores: dict[int, Any] = field(default_factory=dict)  # rank -> float32[layers, blocks] of this round
    scored: int = 0  # blocks that a round asked the ranks to score

    def begin(self, key: RequestKey, table: list[EngineBlock]) -> None:
        """A new life: nothing of it is known to the coordinator yet."""
        self.key, self.table = key, table
        self.opened = self.sealed = self.replaced = self.revision = self.kept_live = self.fullest = self.scored = 0
        self.want = None
        self.scores.clear()

    @property
    def decoding(self) -> bool:
        """Whether its whole prompt has been computed."""
        return self.request.num_computed_tokens >= self.request.num_prompt_tokens

    def last_block(self, tokens: int, block_size: int) -> int:
        """Id of the block that a step of so many tokens writes last; -1 for a request that has none."""
        last = (self.request.num_computed_tokens + tokens - 1) // block_size
        return self.table[last].block_id if self.table is not None else -1
