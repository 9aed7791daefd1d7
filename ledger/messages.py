"""What goes into the one door (commands, reports) and what comes out of it beside events (effects). Data, all of it."""

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from kvsweep.ledger.events import Event, RankEpochs, RetainMode, SourceKind
from kvsweep.ledger.ids import Logical, Operation, Physical, RequestKey, Rows, Slot, Source, Token

# ---- selection


class BlockSelection(Struct, frozen=True, kw_only=True, gc=False):
    """Whole blocks that attention shall read, per active layer (contract D1).

    `ranked_tail_by_layer` holds the remaining candidates best first, NOT in id order. Every id is in [0, whole_blocks).

    Token method: `tokens_by_layer` names positions in [0, whole_blocks * block_size), ascending; a layer's blocks are
    0 … ceil(tokens / block_size) − 1, those that its tokens are packed into. Nothing is held over then.
    """

    request: RequestKey
    selection_revision: int
    block_size: int  # tokens
    logical_blocks_by_layer: Rows[Logical]  # ascending
    ranked_tail_by_layer: Rows[Logical]
    group_by_layer: bytes  # '<i4' a row
    whole_blocks: int
    effective_budget_blocks: int
    tokens_by_layer: Rows[Token] | None = None


# ---- commands: the serving loop asks


class OpenRequest(Struct, frozen=True, kw_only=True):
    request_id: str


class RegisterSources(Struct, frozen=True, kw_only=True):
    """The producer already holds these whole blocks of the request, each under the given CPU block."""

    request: RequestKey
    logical: bytes  # '<i4'
    source: bytes  # '<i4'


class OpenTail(Struct, frozen=True, kw_only=True):
    """Room for device-written blocks up to and without logical block `until`."""

    request: RequestKey
    until: int


class SealTail(Struct, frozen=True, kw_only=True):
    """Every token below `confirmed_tokens` is confirmed and written: whole blocks are sealed and stored."""

    request: RequestKey
    confirmed_tokens: int


class Select(Struct, frozen=True, kw_only=True):
    """Upload what the view lacks of the selection. Clean tail blocks that are wanted become slots without a copy.

    `adopt` False copies those too, from the CPU: for tail blocks that are only lent, which a view must not keep.
    """

    selection: BlockSelection
    idempotency_key: str
    adopt: bool = True


class Retain(Struct, frozen=True, kw_only=True):
    """Keep these slots of the view of this map revision, and adopt these clean tail blocks, in every active layer.

    `pack` asks instead to gather the view's areas in as few blocks as possible; keep is then every slot.
    """

    request: RequestKey
    keep: Rows[Slot]
    adopt: Rows[Logical]
    map_revision: int
    selection_revision: int
    idempotency_key: str
    pack: bool = False


class Abort(Struct, frozen=True, kw_only=True):
    operation: Operation
    reason: str


class Preempt(Struct, frozen=True, kw_only=True):
    request: RequestKey


class Resume(Struct, frozen=True, kw_only=True):
    request: RequestKey


class Finish(Struct, frozen=True, kw_only=True):
    request: RequestKey


class PublishPrefix(Struct, frozen=True, kw_only=True):
    """Share these clean tail blocks of the request, each under the opaque name of the tokens up to its end."""

    request: RequestKey
    keys: tuple[tuple[int, str], ...]  # (logical block, key)


class AttachPrefix(Struct, frozen=True, kw_only=True):
    """Refer to the shared blocks of these names, from logical block 0 on, as far as they are there."""

    request: RequestKey
    keys: tuple[str, ...]  # of logical blocks 0, 1, …


class EvictPrefix(Struct, frozen=True, kw_only=True):
    """Give up the cache's references to its oldest blocks; readers keep theirs."""

    blocks: int  # at most


Command: TypeAlias = (
    OpenRequest
    | RegisterSources
    | OpenTail
    | SealTail
    | Select
    | Retain
    | Abort
    | Preempt
    | Resume
    | Finish
    | PublishPrefix
    | AttachPrefix
    | EvictPrefix
)

# ---- reports: a peer says


class Done(Struct, frozen=True, kw_only=True, tag=True):
    """A rank's terminal report on one operation. Zero bytes are acknowledged too."""

    operation: Operation
    rank: int
    process_epoch: int
    outcome: str  # an Outcome; anything else is a conflict
    h2d_bytes: int = 0
    unpack_bytes: int = 0
    d2h_bytes: int = 0
    resident_moved_bytes: int = 0
    table_updates: int = 0
    wait_s: float = 0.0


class Acknowledged(Struct, frozen=True, kw_only=True, tag=True):
    """The producer has taken note of a published keep map or a committed view."""

    operation: Operation
    process_epoch: int
    cpu_gather_bytes: int = 0


class ProcessStarted(Struct, frozen=True, kw_only=True, tag=True):
    """A rank's or the producer's process lives in this epoch; an earlier one of the same peer is over."""

    process_epoch: int
    rank: int | None = None  # None: the producer


class ProcessLost(Struct, frozen=True, kw_only=True, tag=True):
    """A rank's process is known to have ended; nothing of it can read or write any more."""

    rank: int
    process_epoch: int


class Reserved(Struct, frozen=True, kw_only=True):
    """Answer to `Reserve`: blocks, or None where the pools cannot give all of them now."""

    cause: "Command"
    device: tuple[bytes, ...] | None  # '<i4' a group
    cpu_full: bytes  # '<i4' in [0, K)
    cpu_copy: bytes  # '<i4' in [K, N)
    free: int  # blocks free in the pool that could not give, for the refusal's text
    claimed: bytes = b""  # '<i4' in [0, K): the ids that were asked for by name


Report: TypeAlias = Done | Acknowledged | ProcessStarted | ProcessLost | Reserved

REPORTS: Final = frozenset({Done, Acknowledged, ProcessStarted, ProcessLost})
"""What peers say."""

STARTS_WORK: Final = frozenset({Select, Retain, OpenTail, SealTail, RegisterSources, PublishPrefix, AttachPrefix})
"""Refused as `Busy` while the log is behind by its bound. Whatever ends work, or says that it has ended, never is."""

# ---- effects: things to do


Need = Literal["nothing", "process", "power"]
"""What must have happened to the batch before the effect may leave."""


class Reserve(Struct, frozen=True, kw_only=True):
    """Ask the pools, all or nothing; the answer is a `Reserved` report that carries the same cause."""

    cause: "Command"
    device: tuple[int, ...]  # new blocks a group
    cpu_full: int
    cpu_copy: int
    claim: bytes = b""  # '<i4' CPU blocks in [0, K) that the producer has chosen itself


class Release(Struct, frozen=True, kw_only=True):
    """Nobody holds these any more: the allocation owners take them back."""

    device: tuple[bytes, ...]  # '<i4' a group
    cpu: bytes  # '<i4'
    needs: Need = "process"


class Gather(Struct, frozen=True, kw_only=True, tag=True):
    """Producer: copy these blocks, layer by layer, into copy destinations before the transfer reads them."""

    operation: Operation
    source: Rows[Source]
    destination: Rows[Source]  # row for row
    needs: Need = "nothing"


class PackTokens(Struct, frozen=True, kw_only=True, tag=True):
    """Producer: pack these tokens, layer by layer, into whole copy destinations before the transfer reads them."""

    operation: Operation
    tokens: Rows[Token]  # places in the CPU pool: full block * block_size + offset
    destination: Rows[Source]  # ceil(tokens / block_size) a layer; places behind the last token are zero
    needs: Need = "nothing"


class Transfer(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: pull whole blocks from CPU memory into areas, write the table row, then report. Rows are per layer."""

    operation: Operation
    ranks: RankEpochs
    generation: int
    row: int
    source_kind: SourceKind
    source: Rows[Source]
    destination: Rows[Physical]
    table: Rows[Physical]  # the whole new table, in slot order
    floor: int  # lowest open operation id: below it a rank forgets and refuses
    needs: Need = "nothing"


class MoveBlocks(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: copy areas out of place (none for a remap), write the table row, then report."""

    operation: Operation
    ranks: RankEpochs
    generation: int
    row: int
    mode: RetainMode
    source: Rows[Physical]
    destination: Rows[Physical]
    table: Rows[Physical]
    floor: int
    needs: Need = "nothing"


class StoreBlocks(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: copy device-written blocks to CPU blocks, every layer of every group, then report."""

    operation: Operation
    ranks: RankEpochs
    source: Rows[Physical]  # every layer, groups resolved
    destination: Rows[Source]  # row for row
    floor: int
    needs: Need = "nothing"


class Cancel(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: stop the operation if it has not run, or let it finish; say which. Promise to refuse a late start."""

    operation: Operation
    ranks: RankEpochs
    needs: Need = "nothing"


class Heard(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: the coordinator has your report on this operation; it need not be repeated."""

    operation_id: int


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """Rank: this life of the request is closed; its table rows are nobody's any more."""

    request: RequestKey


class PublishKeepMap(Struct, frozen=True, kw_only=True, tag=True):
    """Producer: the ordered keep slots per layer of one selection revision."""

    operation: Operation
    selection_revision: int
    keep: Rows[Slot]
    needs: Need = "process"


class Acknowledge(Struct, frozen=True, kw_only=True, tag=True):
    """Producer: this operation has committed; sources are no longer read for it."""

    operation: Operation
    generation: int
    needs: Need = "process"


RankWork: TypeAlias = Transfer | MoveBlocks | StoreBlocks | Cancel
ToRank: TypeAlias = RankWork | Heard | Forget
FromRank: TypeAlias = Done | ProcessStarted
ProducerWork: TypeAlias = Gather | PackTokens | PublishKeepMap | Acknowledge
Effect: TypeAlias = (
    Reserve
    | Release
    | Gather
    | PackTokens
    | Transfer
    | MoveBlocks
    | StoreBlocks
    | Cancel
    | PublishKeepMap
    | Acknowledge
)


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a message was not applied."""

    what: str
    reason: str
    legal: tuple[str, ...] = ()


class Turn(Struct, frozen=True, kw_only=True):
    """Answer of the one door to one message. `repeated`, `ignored` and `refused` leave the state as it was."""

    outcome: Literal["accepted", "repeated", "ignored", "refused", "reserve"]
    refusal: Refusal | None = None
    operation: Operation | None = None
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    holds_blocks: bool = False
