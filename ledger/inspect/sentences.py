"""Every event as one line for people: what happened, with the few numbers that tell two such events apart."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from kvsweep.ledger import events as e
from kvsweep.ledger.events import BlocksByGroup, Event
from kvsweep.ledger.ids import Operation, Rows, int32_view
from kvsweep.ledger.inspect.as_data import named

RUNS_SHOWN: Final = 8  # of a list of ids; the rest is counted


def sentence(event: Event) -> str:
    """The event in one line. What a peer said is in it: whatever a terminal would not print is shown as an escape."""
    text = SENTENCES[type(event)](event)
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def counted(number: int, what: str) -> str:
    """'1 block', '2 blocks'."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ids(data: bytes) -> str:
    """A list of ids, with runs of neighbours as 'first–last', shortened."""
    found = int32_view(data)
    starts = [0, *(np.flatnonzero(np.diff(found) != 1) + 1).tolist(), found.size] if found.size else [0]
    runs = [(int(found[low]), int(found[high - 1])) for low, high in itertools.pairwise(starts)]
    texts = [str(low) if low == high else f"{low}–{high}" for low, high in runs]
    left = len(texts) - RUNS_SHOWN
    return ", ".join(texts[:RUNS_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _groups(blocks: BlocksByGroup) -> str:
    parts = [f"group {group}: {ids(data)}" for group, data in enumerate(blocks) if data]
    return "; ".join(parts) or "none"


def _rows(rows: Rows[Any]) -> str:
    """Ids over the layers: '12 in 4 layers'."""
    return f"{rows.size} in {counted(int((rows.counts > 0).sum()), 'layer')}"


def _op(operation: Operation) -> str:
    return f"operation {operation.operation_id}"


def _ranks(event: Any) -> str:
    return ", ".join(str(rank) for rank, _ in event.ranks)


def _speaker(rank: int) -> str:
    return "the producer" if rank < 0 else f"rank {rank}"


def _aborted(event: Any) -> str:
    return f"{_op(event.operation)} is aborted: {event.reason}"


def _verdict(event: e.AckIgnored | e.AckRefused) -> str:
    said = f"{_speaker(event.rank)} (process {event.process_epoch}) said {event.outcome}"
    return f"{said} on {_op(event.operation)} of {named(event.operation.request)}; {event.verdict}: {event.rule}"


SENTENCES: Final[Mapping[type[Event], Callable[[Any], str]]] = {
    e.RequestOpened: lambda v: f"a life begins with {v.rows} table rows, in pool generation {v.pool_generation}",
    e.RequestPreempted: lambda v: "the request loses its residency",
    e.RequestResumed: lambda v: "the request runs again, without a view",
    e.RequestFinished: lambda v: "no more tokens: what it holds drains",
    e.RequestClosed: lambda v: "nothing is held any more",
    e.BlocksSelected: lambda v: (
        f"selection {v.selection_revision}: up to {v.effective_budget_blocks} of {v.whole_blocks} whole blocks a layer"
    ),
    e.UploadPlanned: lambda v: (
        f"{_op(v.operation)} plans an upload: {v.kind}, {v.source_kind}, {_rows(v.logical)} to upload"
    ),
    e.UploadStaged: lambda v: f"{_op(v.operation)} stages generation {v.generation} at table row {v.row}",
    e.BlocksLeased: lambda v: f"{_op(v.operation)} leases {_rows(v.destination)}; newly reserved {_groups(v.reserved)}",
    e.TransferStarted: lambda v: f"{_op(v.operation)} is sent to ranks {_ranks(v)}",
    e.RankTransferred: lambda v: (
        f"rank {v.rank} (process {v.process_epoch}) has {_op(v.operation)}: {v.h2d_bytes} bytes uploaded"
    ),
    e.TransferCompleted: lambda v: f"every rank has {_op(v.operation)}",
    e.ResidencyCommitted: lambda v: f"generation {v.generation} is current, by {_op(v.operation)}",
    e.KeepMapPublished: lambda v: (
        f"{_op(v.operation)} moves nothing: the keep map of selection {v.selection_revision} is published"
    ),
    e.UploadAcknowledged: lambda v: f"the producer knows of {_op(v.operation)}",
    e.UploadAborted: _aborted,
    e.RetainPlanned: lambda v: (
        f"{_op(v.operation)} plans generation {v.generation}: {v.mode}, keeps {_rows(v.keep)}, "
        f"moves {v.moved_to.size}, table row {v.row}; newly reserved {_groups(v.reserved)}"
    ),
    e.ReadersDrained: lambda v: f"row {v.row} has no reader: {_op(v.operation)} is sent to ranks {_ranks(v)}",
    e.TablesApplied: lambda v: (
        f"rank {v.rank} (process {v.process_epoch}) has applied {_op(v.operation)}: "
        f"{v.resident_moved_bytes} bytes moved, {counted(v.table_updates, 'table')} written"
    ),
    e.AllRanksApplied: lambda v: f"every rank has applied {_op(v.operation)}",
    e.OwnersCommitted: lambda v: f"generation {v.generation} is current, by {_op(v.operation)}",
    e.BlocksRetired: lambda v: (
        f"generation {v.generation} has no reader left (replaced by {v.cause}); freed {_groups(v.freed)}"
    ),
    e.RetainAcknowledged: lambda v: f"the producer knows of {_op(v.operation)}",
    e.RetainAborted: _aborted,
    e.TailOpened: lambda v: (
        f"logical block {v.logical} may be written, in block {ids(v.physical_by_group)} (one a group)"
    ),
    e.TailSealed: lambda v: f"logical block {v.logical} is full and not yet stored",
    e.StoreStarted: lambda v: (
        f"{_op(v.operation)} stores logical blocks {ids(v.logical)} to CPU blocks {ids(v.source)}, on ranks {_ranks(v)}"
    ),
    e.RankStored: lambda v: (
        f"rank {v.rank} (process {v.process_epoch}) has stored {_op(v.operation)}: {v.d2h_bytes} bytes"
    ),
    e.StoreCompleted: lambda v: f"{_op(v.operation)} is stored on every rank: its CPU blocks are valid",
    e.StoreAborted: _aborted,
    e.BlockLost: lambda v: f"logical block {v.logical} is lost: {v.reason}",
    e.TailDropped: lambda v: f"logical blocks {ids(v.logical)} of group {v.group} leave the tail into fence {v.fence}",
    e.FenceOpened: lambda v: f"fence {v.fence} opens: its steps have ended; freed {_groups(v.freed)}",
    e.SourcesRegistered: lambda v: f"the producer holds {counted(len(v.logical) // 4, 'whole block')}",
    e.TransferSettled: lambda v: (
        f"rank {v.rank} (process {v.process_epoch}) is done with {_op(v.operation)}: {v.outcome}"
    ),
    e.AckIgnored: _verdict,
    e.AckRefused: lambda v: f"{_verdict(v)}; expected {v.expected}, got {v.got}",
    e.PlanRefused: lambda v: (
        f"no {v.lane} plan: {v.reason}; {v.needed} places needed, {v.vacant} vacant areas, {v.free} free blocks"
    ),
    e.CommandRefused: lambda v: f"{v.command} is refused in {v.state}: {v.reason}",
    e.RunConfigured: lambda v: (
        f"the run: {len(v.layout.layers)} layers, ranks {_ranks(v)}, {', '.join(map(str, v.device_blocks))} blocks "
        f"(one number a group), {v.cpu_full_blocks} CPU blocks"
    ),
    e.RankLost: lambda v: f"rank {v.rank}: process {v.process_epoch} has ended; pool generation {v.pool_generation}",
    e.RankRestarted: lambda v: f"rank {v.rank}: process {v.process_epoch} lives; pool generation {v.pool_generation}",
    e.ProducerRestarted: lambda v: f"the producer: process {v.process_epoch} lives; no CPU block is valid any more",
    e.CoordinatorRestarted: lambda v: "another process of the coordinator goes on with this ledger",
    e.DigestRecorded: lambda v: f"digest after position {v.position}: {v.digest[:16]}…",
    e.PrefixPublished: lambda v: f"logical block {v.logical} is shared as prefix {v.number}",
    e.PrefixAttached: lambda v: f"logical block {v.logical} is that of prefix {v.number}",
    e.PrefixEvicted: lambda v: f"the cache gives up prefix {v.number}; freed {_groups(v.freed)}",
    e.HandshakeAgreed: lambda v: f"{v.peer} holds the same contract",
    e.HandshakeRefused: lambda v: f"{v.peer} is refused: {', '.join(one.field for one in v.differences)} differ",
}
