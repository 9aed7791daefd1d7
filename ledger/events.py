"""Facts: frozen, past tense, identity first. One stream a request life, one for the pool; each dense in `seq`.

Encoding is positional (array_like, integer tags): fields are only ever appended, with defaults. What a clock measured
stands in a `measured` field, which digests leave out.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from kvsweep.ledger.ids import Logical, Operation, Physical, RequestKey, Rows, Slot, Source
from kvsweep.ledger.layout import Layout

RankEpochs: TypeAlias = tuple[tuple[int, int], ...]
"""(rank, process epoch) pairs, ranks ascending: the set that an operation waits for."""

BlocksByGroup: TypeAlias = tuple[bytes, ...]
"""One '<i4' list of physical block ids a KV-cache group."""

PlanKind = Literal["diff", "full"]
SourceKind = Literal["source_only", "copy"]
RetainMode = Literal["shared", "layer", "move", "pack"]
Attention = Literal["same", "union"]
Outcome = Literal["completed", "failed", "cancelled", "epoch_ended"]
LaneName = Literal["upload", "retain", "store"]
RetireCause = Literal["upload", "retain", "preempt", "finish"]


class Measured(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Seconds that a clock measured. Never part of a digest."""

    wait_s: float = 0.0  # from the start of the operation to this report
    plan_s: float = 0.0


class Implementation(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What did the work where several do the same, bit for bit. Never part of a digest, so that runs compare."""

    kernels: str = ""  # "numpy", or "native" with its instruction set, threads and SHA-256


class Event(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Parent of all facts."""

    request: RequestKey
    seq: int  # dense within (request, epoch), from 0


# ---- a request's stream


class RequestOpened(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=1):
    """A life of a request begins."""

    pool_generation: int
    rows: int  # block-table rows it may use at once: 2 is double buffering, 3 lets a retry run while one settles


class RequestPreempted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=2):
    """The request lost its residency; the CPU keeps its KV."""


class RequestResumed(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=3):
    """The request runs again, without a view until an upload commits."""


class RequestFinished(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=4):
    """No more tokens: everything it holds drains."""


class RequestClosed(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=5):
    """Nothing of the request is held any more."""


class BlocksSelected(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=10):
    """A selection was accepted. The selection itself stays with its maker; the digest names it."""

    selection_revision: int
    digest: str  # SHA-256 of the encoded selection
    whole_blocks: int  # whole blocks of the sequence when it was made
    effective_budget_blocks: int
    idempotency_key: str = ""


class UploadPlanned(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=11):
    """What has to move. `full` ignores what is held: the new view is the upload alone."""

    operation: Operation
    kind: PlanKind
    source_kind: SourceKind
    logical: Rows[Logical]  # ascending per layer
    common_new_slots: int = 0  # shared-table stage
    pad: Rows[Logical] | None = None  # of `logical`: those nobody asked for
    measured: Measured = Measured()
    valid_tokens: bytes = (
        b""  # '<i4' a layer, token method only: tokens packed into `logical`, which numbers the copies
    )


class UploadStaged(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=66):
    """The generation that a commit would make stands beside the current one, and has its table row."""

    operation: Operation
    generation: int
    row: int


class BlocksLeased(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=12):
    """Destinations, sources and the table row of the staged generation are held from here on."""

    operation: Operation
    source: Rows[Source]  # row for row as UploadPlanned.logical
    destination: Rows[Physical]
    adopted: Rows[Logical]  # clean tail blocks that become slots without a copy
    reserved: BlocksByGroup  # newly reserved blocks
    copies: bytes = b""  # '<i4' CPU copy destinations in [K, N)


class TransferStarted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=13):
    """The transfer was sent to every rank of the set."""

    operation: Operation
    ranks: RankEpochs
    metadata_bytes: int = 0  # ids and tables of the message, one copy a rank


class RankTransferred(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=14):
    """One rank's copies and table row are complete and visible to later reads on that rank."""

    operation: Operation
    rank: int
    process_epoch: int
    h2d_bytes: int
    unpack_bytes: int
    table_updates: int
    measured: Measured = Measured()


class TransferCompleted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=15):
    """Every distinct rank of the set has completed."""

    operation: Operation


class ResidencyCommitted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=16):
    """The new view is current."""

    operation: Operation
    generation: int


class KeepMapPublished(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=17):
    """A zero-byte plan: residency stays, the keep slots of this revision are known (F1)."""

    operation: Operation
    selection_revision: int
    keep: Rows[Slot]
    metadata_bytes: int = 0


class UploadAcknowledged(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=18):
    """The producer knows the outcome."""

    operation: Operation
    process_epoch: int
    cpu_gather_bytes: int = 0  # what the producer copied into copy destinations for this operation


class UploadAborted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=19):
    """No commit: the old residency stands, the operation settles."""

    operation: Operation
    reason: str


class RetainPlanned(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=20):
    """How the new view is built: the kept slots of the current view in resident order, then the adopted blocks.

    `moved_from` and `moved_to` are parallel per layer: areas copied out of place and substituted in the new table.
    """

    operation: Operation
    generation: int
    mode: RetainMode
    attention: Attention  # "union" is not the same selected attention
    keep: Rows[Slot]
    adopted: Rows[Logical]
    moved_from: Rows[Physical]
    moved_to: Rows[Physical]
    row: int
    reserved: BlocksByGroup
    selection_revision: int
    idempotency_key: str = ""
    measured: Measured = Measured()
    digest: str = ""  # SHA-256 of the command; names it beside the idempotency key


class ReadersDrained(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=21):
    """The table row to be written has no reader; the change was sent to every rank of the set."""

    operation: Operation
    row: int
    ranks: RankEpochs
    metadata_bytes: int = 0


class TablesApplied(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=22):
    """One rank has moved its bytes (maybe none) and written its row."""

    operation: Operation
    rank: int
    process_epoch: int
    resident_moved_bytes: int
    table_updates: int
    measured: Measured = Measured()


class AllRanksApplied(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=23):
    """Every distinct rank of the set has applied."""

    operation: Operation


class OwnersCommitted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=24):
    """The new view is current."""

    operation: Operation
    generation: int


class BlocksRetired(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=25):
    """A replaced view has no reader left: its areas and row are released."""

    generation: int
    cause: RetireCause
    freed: BlocksByGroup  # blocks that nobody holds any more


class RetainAcknowledged(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=26):
    """The producer's ledger knows the new view."""

    operation: Operation
    process_epoch: int


class RetainAborted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=27):
    """No commit: the old view stands, the operation settles."""

    operation: Operation
    reason: str


class TailOpened(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=30):
    """The device may write a new logical block: one newly reserved physical block a group."""

    logical: int
    physical_by_group: bytes  # '<i4', one a group


class TailSealed(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=31):
    """Every token of the block is confirmed and every step that wrote it has ended: dirty until stored."""

    logical: int


class StoreStarted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=32):
    """Sealed tail blocks are copied to the CPU, all layers."""

    operation: Operation
    logical: bytes  # '<i4'
    source: bytes  # '<i4' CPU block of each logical block
    ranks: RankEpochs


class RankStored(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=33):
    """One rank's part of the blocks is in CPU memory."""

    operation: Operation
    rank: int
    process_epoch: int
    d2h_bytes: int
    measured: Measured = Measured()


class StoreCompleted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=34):
    """The CPU blocks are valid: every rank has stored its part."""

    operation: Operation


class StoreAborted(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=35):
    """The blocks stay dirty; the operation settles."""

    operation: Operation
    reason: str


class BlockLost(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=36):
    """A device-written block was dropped before it was stored: to be computed again."""

    logical: int
    reason: str


class TailDropped(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=37):
    """Blocks of one group leave the tail (adopted, mirrored, out of the window, finished) into a fence."""

    group: int
    logical: bytes  # '<i4'
    fence: int  # number of the fence, dense within the request


class FenceOpened(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=38):
    """Every step that was handed the fence's tail blocks has ended."""

    fence: int
    freed: BlocksByGroup


class SourcesRegistered(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=39):
    """The producer holds these whole blocks: valid sources for an upload."""

    logical: bytes  # '<i4'
    source: bytes  # '<i4'


class TransferSettled(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=40):
    """One rank can no longer read or write for an aborted operation; the last one releases what it holds."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: Outcome


class AckIgnored(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=41):
    """An acknowledgement that changes nothing: repeated or old."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: str
    verdict: Literal["duplicate", "stale"]
    rule: str  # the row of the decision table that decided


class AckRefused(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=42):
    """An acknowledgement that cannot be honest: from the future, or against what is known."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: str
    verdict: Literal["future", "conflict"]
    rule: str
    expected: str
    got: str


class PlanRefused(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=43):
    """A plan could not get what it needs; nothing changed."""

    lane: LaneName
    reason: str  # no_space | no_row | invalid_source | unequal_layers | rank_lost
    needed: int
    vacant: int
    free: int
    selection_revision: int = 0


class CommandRefused(Event, frozen=True, kw_only=True, array_like=True, gc=False, tag=44):
    """The serving loop asked for something illegal in this state."""

    command: str
    state: str
    reason: str


# ---- the pool's stream, and what requests say of shared blocks


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


AnyEvent: TypeAlias = (
    RequestOpened | RequestPreempted | RequestResumed | RequestFinished | RequestClosed | BlocksSelected
    | UploadPlanned | UploadStaged | BlocksLeased | TransferStarted | RankTransferred | TransferCompleted
    | ResidencyCommitted
    | KeepMapPublished | UploadAcknowledged | UploadAborted | RetainPlanned | ReadersDrained | TablesApplied
    | AllRanksApplied | OwnersCommitted | BlocksRetired | RetainAcknowledged | RetainAborted | TailOpened
    | TailSealed | StoreStarted | RankStored | StoreCompleted | StoreAborted | BlockLost | TailDropped
    | FenceOpened | SourcesRegistered | TransferSettled | AckIgnored | AckRefused | PlanRefused | CommandRefused
    | RunConfigured | RankLost | RankRestarted | ProducerRestarted | DigestRecorded | PrefixPublished
    | PrefixAttached | PrefixEvicted | HandshakeAgreed | HandshakeRefused | CoordinatorRestarted
)  # fmt: skip
"""Closed union: the codec decodes exactly these."""
