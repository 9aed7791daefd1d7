"""Event lists written by hand: one pool of 8 blocks, two full layers, two ranks; CPU blocks 0…11, copies 12…15."""

from typing import Any

from kvsweep.ledger import events as e
from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import POOL, Operation, RequestKey, Rows, int32_bytes
from kvsweep.ledger.layout import LayerLayout, Layout

LAYOUT = Layout.of(
    model_hash="story",
    dtype="float32",
    block_size=4,
    layers=tuple(LayerLayout(layer=layer, group=0, kind="full", kv_heads=2, head_dim=2) for layer in range(2)),
)
RANKS = ((0, 10), (1, 11))
PRODUCER = 5
A, B = RequestKey("a", 1), RequestKey("b", 1)
Ids = dict[int, list[int]]


def ids(*values: int) -> bytes:
    return int32_bytes(list(values))


def operation(number: int, key: RequestKey = A, revision: int = 0) -> Operation:
    return Operation(request=key, operation_id=number, pool_generation=1, map_revision=revision)


class Story:
    """Events in order. Every method adds the events of one step and returns the story."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seq: dict[RequestKey, int] = {}
        self.add(
            e.RunConfigured,
            POOL,
            layout=LAYOUT,
            ranks=RANKS,
            producer_epoch=PRODUCER,
            device_blocks=(8,),
            cpu_full_blocks=12,
            cpu_total_blocks=16,
            evidence="{}",
        )

    def add(self, fact: type[Event], life: RequestKey = A, /, **fields: Any) -> "Story":
        seq = self._seq.get(life, 0)
        self._seq[life] = seq + 1
        self.events.append(fact(request=life, seq=seq, **fields))
        return self

    def opened(self, key: RequestKey = A, rows: int = 2, sources: Ids | None = None) -> "Story":
        """sources: CPU block by logical block; default block n lies in CPU block n + 4."""
        self.add(e.RequestOpened, key, pool_generation=1, rows=rows)
        named = sources if sources is not None else {0: [4], 1: [5], 2: [6], 3: [7]}
        blocks = ids(*(block for (block,) in named.values()))
        return self.add(e.SourcesRegistered, key, logical=ids(*named), source=blocks)

    def leased(
        self,
        number: int,
        wanted: Ids,
        to: Ids,
        *,
        new: tuple[int, ...] = (),
        row: int = 0,
        generation: int = 1,
        revision: int = 0,
        key: RequestKey = A,
        source: Ids | None = None,
        copies: tuple[int, ...] = (),
        adopted: Ids | None = None,
        kind: str = "diff",
    ) -> "Story":
        """Selected, planned, leased and sent."""
        op = operation(number, key, revision)
        self.add(
            e.BlocksSelected, key, selection_revision=number, digest="d", whole_blocks=8, effective_budget_blocks=4
        )
        self.add(
            e.UploadPlanned,
            key,
            operation=op,
            kind=kind,
            source_kind="copy" if copies else "source_only",
            logical=Rows.of(wanted),
        )
        self.add(e.UploadStaged, key, operation=op, generation=generation, row=row)
        read = {layer: [4 + logical for logical in row] for layer, row in wanted.items()}
        self.add(
            e.BlocksLeased,
            key,
            operation=op,
            source=Rows.of(source or read),
            destination=Rows.of(to),
            adopted=Rows.of(adopted or {0: [], 1: []}),
            reserved=(ids(*new),),
            copies=ids(*copies),
        )
        return self.add(e.TransferStarted, key, operation=op, ranks=RANKS)

    def moved(self, number: int, *, revision: int = 0, key: RequestKey = A, ranks: tuple[int, ...] = (0, 1)) -> "Story":
        for rank in ranks:
            self.add(
                e.RankTransferred,
                key,
                operation=operation(number, key, revision),
                rank=rank,
                process_epoch=dict(RANKS)[rank],
                h2d_bytes=0,
                unpack_bytes=0,
                table_updates=0,
            )
        return self

    def committed(self, number: int, *, generation: int = 1, revision: int = 0, key: RequestKey = A) -> "Story":
        op = operation(number, key, revision)
        self.add(e.TransferCompleted, key, operation=op)
        return self.add(e.ResidencyCommitted, key, operation=op, generation=generation)

    def acknowledged(self, number: int, *, revision: int = 0, key: RequestKey = A) -> "Story":
        op = operation(number, key, revision)
        return self.add(e.UploadAcknowledged, key, operation=op, process_epoch=PRODUCER)

    def uploaded(self, number: int, wanted: Ids, to: Ids, **fields: Any) -> "Story":
        """A whole upload."""
        same = {name: fields[name] for name in ("revision", "key") if name in fields}
        self.leased(number, wanted, to, **fields).moved(number, **same)
        self.committed(number, generation=fields.get("generation", 1), **same)
        return self.acknowledged(number, **same)

    def planned_retain(
        self,
        number: int,
        keep: Ids,
        *,
        moved: tuple[Ids, Ids] = ({0: [], 1: []}, {0: [], 1: []}),
        new: tuple[int, ...] = (),
        row: int = 1,
        generation: int = 2,
        revision: int = 1,
    ) -> "Story":
        op = operation(number, A, revision)
        self.add(
            e.RetainPlanned,
            operation=op,
            generation=generation,
            mode="move" if any(moved[0].values()) else "layer",
            attention="same",
            keep=Rows.of(keep),
            adopted=Rows.of({0: [], 1: []}),
            moved_from=Rows.of(moved[0]),
            moved_to=Rows.of(moved[1]),
            row=row,
            reserved=(ids(*new),),
            selection_revision=1,
        )
        return self.add(e.ReadersDrained, operation=op, row=row, ranks=RANKS)

    def applied(self, number: int, *, generation: int = 2, revision: int = 1) -> "Story":
        """All ranks have applied and the owners are committed."""
        op = operation(number, A, revision)
        for rank, epoch in RANKS:
            self.add(
                e.TablesApplied,
                operation=op,
                rank=rank,
                process_epoch=epoch,
                resident_moved_bytes=0,
                table_updates=0,
            )
        self.add(e.AllRanksApplied, operation=op)
        return self.add(e.OwnersCommitted, operation=op, generation=generation)

    def retired(self, generation: int, freed: tuple[int, ...], cause: str = "retain") -> "Story":
        return self.add(e.BlocksRetired, generation=generation, cause=cause, freed=(ids(*freed),))

    def settled(self, number: int, rank: int, outcome: str = "cancelled", revision: int = 0) -> "Story":
        return self.add(
            e.TransferSettled,
            operation=operation(number, A, revision),
            rank=rank,
            process_epoch=dict(RANKS)[rank],
            outcome=outcome,
        )
