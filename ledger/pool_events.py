"""Facts of the pool: what a run begins with, who lives, what is shared. Kept in the stream `@pool` but for two."""

from msgspec import Struct

from kvsweep.ledger.event_base import BlocksByGroup, Event, Implementation, RankEpochs
from kvsweep.ledger.layout import Layout


class PrefixPublished(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=60):
    """A clean tail block, whole in every layer, is shared from here on: the pool holds it too, nobody writes it."""

    logical: int
    number: int  # of the prefix, dense within the pool
    key: str  # opaque name of the tokens up to the block's end


class PrefixAttached(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=61):
    """A request that begins with the same tokens refers to a shared block: one more holder, no copy."""

    logical: int
    number: int


class PrefixEvicted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=62):
    """The cache gives up its reference; the block is free when its last reader has gone."""

    number: int
    freed: BlocksByGroup


class RunConfigured(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=50):
    """First event of a ledger: what is needed to repeat the run (J1) and what the reducers need of the world."""

    layout: Layout
    ranks: RankEpochs
    producer_epoch: int
    device_blocks: tuple[int, ...]  # pool size of each group
    cpu_full_blocks: int  # K
    cpu_total_blocks: int  # N
    evidence: str  # JSON: command, seed, configuration, active parts, SHA-256 of sources, checks, not run
    implementation: Implementation = Implementation()


class HandshakeAgreed(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=63):
    """Two sides hold the same contract (D4). What must only be recorded stands in `theirs` too."""

    peer: str
    theirs: str  # JSON of the peer's capabilities


class Difference(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One field in which two sides differ."""

    field: str
    expected: str
    got: str


class HandshakeRefused(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=64):
    """A peer was refused: every differing field with both values."""

    peer: str
    differences: tuple[Difference, ...]


class RankLost(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=51):
    """A rank's process epoch ended. Its memory is gone, so the pool generation advances."""

    rank: int
    process_epoch: int
    pool_generation: int


class RankRestarted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=52):
    """A rank lives again in a new process."""

    rank: int
    process_epoch: int
    pool_generation: int


class ProducerRestarted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=53):
    """The producer lives again in a new process: every CPU block is invalid until registered again."""

    process_epoch: int


class CoordinatorRestarted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=65):
    """A new process goes on with this ledger. Every process of the earlier one's ranks has ended, and its steps too.

    First event of the batch that aborts and settles what they left behind.
    """

    evidence: str  # JSON, as that of RunConfigured
    implementation: Implementation = Implementation()


class DigestRecorded(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=54):
    """The running coordinator's own digest after the event at `position`; a replay must give the same."""

    position: int
    digest: str
