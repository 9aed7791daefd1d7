"""A small world as data: sizes, what the serving loop asks for, how often what may go wrong, what must be reached."""

from typing import Any, Literal

from msgspec import Struct

from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.runtime.settings import Settings

BLOCK_TOKENS = 4
FIRST_EPOCHS = (10, 20, 30)
"""Process epochs that ranks 0, 1 and 2 begin with; a restart adds one."""

FIRST_PRODUCER_EPOCH = 5
LOGICAL_BLOCKS = 8
"""Logical blocks of a request; contents are told apart up to this number."""

AskKind = Literal["select", "retain", "pack", "tail", "seal", "publish", "attach", "evict"]
Want = tuple[tuple[int, ...], ...]


class Ask(Struct, frozen=True):
    """One call of the serving loop. Asked whenever the coordinator takes it; a refusal leaves it to be asked again."""

    do: AskKind
    want: Want = ()  # select, retain: logical blocks of each active layer
    until: int = 0  # tail, seal: logical blocks below this; publish, attach: blocks from 0; evict: at most


class Asker(Struct, frozen=True, kw_only=True):
    """One request: how many logical blocks the CPU has of it at the start, and its calls, in this order."""

    name: str
    blocks: int = LOGICAL_BLOCKS
    calls: tuple[Ask, ...]


class Faults(Struct, frozen=True, kw_only=True):
    """How often each may happen, at any moment, over the whole world."""

    aborts: int = 0  # of any open operation
    failures: int = 0  # of an operation on one rank
    preemptions: int = 0  # each may be followed by a resumption
    finishes: int = 0
    reopenings: int = 0  # of a closed request, with its calls from the beginning
    repetitions: int = 0  # of the request's last call
    rank_restarts: int = 0  # heard of later: work begun before is refused
    losses_seen: bool = False  # the end of a process may be heard before the next one's beginning
    producer_restarts: int = 0  # heard at once; blocks are registered again later


class World(Struct, frozen=True, kw_only=True):
    """`sometimes` are situations that the search must meet, beside every call of every request.

    `states` is the number of distinct states, where the world is searched to its end.
    """

    name: str
    title: str
    askers: tuple[Asker, ...]
    sometimes: tuple[str, ...]
    states: int
    faults: Faults = Faults()
    ranks: int = 2
    layers: int = 2  # full ones
    sliding: int = 0  # and layers in a group of their own, with a window of one block
    blocks: int = 4  # of the device pool of each group
    cpu_blocks: int = 16  # K
    copies: int = 0  # N - K; from 1 on plans copy
    rows: int = 3
    steps: int = 0  # begun over the whole world
    open_steps: int = 2  # at a time
    layer_tables: bool = True  # false: one table a group
    by_layer: bool = False  # a rank copies layer after layer, and other things happen in between
    shared_text: int = 0  # leading logical blocks that are the same in every request
    keyed: bool = False  # selections carry an idempotency key, and each may be asked for again under it
    forged: bool = False  # in every state, reports that no rank sent are tried and have to change nothing

    @property
    def layout(self) -> Layout:
        layers = tuple(
            LayerLayout(layer=layer, group=0, kind="full", kv_heads=self.ranks, head_dim=1)
            for layer in range(self.layers)
        )
        layers += tuple(
            LayerLayout(
                layer=layer, group=1, kind="sliding", kv_heads=self.ranks, head_dim=1, window_tokens=BLOCK_TOKENS
            )
            for layer in range(self.layers, self.layers + self.sliding)
        )
        return Layout.of(model_hash="world", dtype="float32", block_size=BLOCK_TOKENS, layers=layers)

    @property
    def settings(self) -> Settings:
        settings: dict[str, Any] = {
            "log": {"url": "memory:"},
            "kernels": {"choice": "numpy"},
            "retain": {"table_rows": self.rows, "layer_tables": self.layer_tables},
        }
        if self.copies:
            settings["source"] = {"kind": "copy", "allow_copy": True}
        return Settings.of(**settings)

    @property
    def total_cpu_blocks(self) -> int:
        """N."""
        return self.cpu_blocks + self.copies
