"""A stand-in for vLLM: block pool, scheduler and a model that notes what it writes and checks every byte it reads.

It keeps vLLM's rules where the connector leans on them: reference counts without a check of ours, tables that only
grow, blocks given to the next request at once, prefix hits on blocks that nobody refers to any more.
"""

import pickle
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from kvsweep.ledger.layout import Layout
from kvsweep.runtime.vllm.half import SchedulerHalf
from kvsweep.runtime.vllm.settings import ConnectorSettings
from kvsweep.runtime.vllm.start import layout_of, open_half, rank_capabilities
from kvsweep.transports.vllm.attention import layer_tables
from kvsweep.transports.vllm.memory import RankMemory
from kvsweep.transports.vllm.messages import Ack, Scores, StepMeta, WorkerHandshake
from kvsweep.transports.vllm.worker import WorkerHalf

BLOCK, LAYERS, TOKEN_BYTES = 4, 3, 8


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: str | None = None


class BlockPool:
    """vLLM's, with one check more: a reference that is not there is not dropped."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [Block(number) for number in range(blocks)]
        self.free: deque[Block] = deque(self.blocks)
        self.null_block = self.free.popleft()
        self.null_block.is_null = True
        self.cached: dict[str, Block] = {}

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        found = [self.free.popleft() for _ in range(num_blocks)]
        for block in found:
            assert block.ref_cnt == 0
            block.ref_cnt = 1
            if block.block_hash is not None and self.cached.get(block.block_hash) is block:
                del self.cached[block.block_hash]
            block.block_hash = None
        return found

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            if block.is_null:
                continue
            assert block.ref_cnt > 0, f"block {block.block_id} is freed twice"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (self.free.append if block.block_hash else self.free.appendleft)(block)


@dataclass
class Request:
    request_id: str
    tokens: list[str]  # what each token's KV is made of
    num_prompt_tokens: int
    total: int
    num_computed_tokens: int = 0
    outputs: int = 0


@dataclass
class Rank:
    half: WorkerHalf
    layers: list[np.ndarray[Any, Any]]


def rows_of(content: str, layer: int, rank: int) -> bytes:
    """One token's KV: named by all tokens up to it, its layer and its rank."""
    return zlib.crc32(f"{content}/{layer}/{rank}".encode(errors="surrogatepass")).to_bytes(4, "little") * (
        TOKEN_BYTES // 4
    )


def make_layout(ranks: int) -> Layout:
    return layout_of(
        model_hash="stand-in", dtype="float32", block_size=BLOCK, layers=LAYERS, kv_heads=ranks, head_dim=1
    )


@dataclass
class Engine:
    """`step` is one turn of vLLM's loop. `lost` takes the ranks' joined answer on its way back, for tests."""

    blocks: int = 24
    ranks: int = 2
    chunk: int = 8  # tokens of a prompt a step
    running: int = 4
    prefix: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    lost: Callable[[Ack], object] = lambda ack: ack
    epoch: int = 1

    def __post_init__(self) -> None:
        self.settings = ConnectorSettings.load({"poison": True, **self.extra})
        self.layout = make_layout(self.ranks)
        self.pool = BlockPool(self.blocks)
        self.tables: defaultdict[str, list[Any]] = defaultdict(list)
        self.hashed: dict[str, int] = {}
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        self.random = np.random.default_rng(20260916)
        self.handed: set[str] = set()  # requests whose view the step reads
        self.preemptions = self.reads = self.skipped = 0
        self.nodes = [self._rank(rank) for rank in range(self.ranks)]
        cpu = self.settings.cpu_tier(self.blocks)
        self.half: SchedulerHalf = open_half(
            self.settings,
            self.settings.core(requests=64),
            self.layout,
            self.pool,  # type: ignore[arg-type]
            self.tables,
            self.hashed,
            handshakes=[
                WorkerHandshake(
                    rank=rank,
                    process_epoch=self.epoch,
                    capabilities=rank_capabilities(
                        self.layout, ranks=self.ranks, process_epoch=self.epoch, cpu_blocks=cpu
                    ),
                )
                for rank in range(self.ranks)
            ],
            producer_epoch=self.epoch,
            aliases=4 * self.blocks,
            evidence={},
        )

    def _rank(self, rank: int) -> Rank:
        layers = [np.zeros((self.blocks, BLOCK * TOKEN_BYTES), dtype=np.uint8) for _ in range(LAYERS)]
        memory = RankMemory(layers, cpu_blocks=self.settings.cpu_tier(self.blocks), checksums=True)
        half = WorkerHalf(
            memory,
            rank=rank,
            process_epoch=self.epoch,
            block_size=BLOCK,
            poison=self.settings.poison,
            faults=self.settings.faults,
            rebuild=lambda metadata, lengths: None,
        )
        return Rank(half, layers)

    # ---- what a user does

    def add(self, request_id: str, prompt: int, output: int, group: str = "") -> Request:
        """group: requests of one group have the same prompt."""
        name = group or request_id
        tokens = [f"{name}:{at}" for at in range(prompt)] + [f"{request_id}+{at}" for at in range(output)]
        content = [f"{'' if at < prompt else request_id}{'/'.join(tokens[at : at + 1])}" for at in range(len(tokens))]
        request = Request(request_id, content, prompt, prompt + output)
        self.waiting.append(request)
        self.half.on_new_request(request)
        return request

    def abort(self, request_id: str) -> None:
        for request in [*self.active, *self.waiting]:
            if request.request_id == request_id:
                self._finish(request)

    @property
    def busy(self) -> bool:
        return bool(self.active or self.waiting)

    def run(self, steps: int = 2000) -> None:
        """To the end of every request, and on until nothing is pending."""
        for _ in range(steps):
            if not self.busy and not self.half.pending():
                return
            self.step()
        raise AssertionError(f"not done after {steps} steps: {self.half.pending()} {self.active} {self.waiting}")

    # ---- one turn of the loop

    def step(self) -> None:
        scheduled = self._schedule()
        meta = pickle.loads(pickle.dumps(self.half.build(scheduled)))
        joined: Ack | None = None
        for node in self.nodes:
            node.half.begin(meta)
            self._forward(node, meta, scheduled)
            ack = pickle.loads(pickle.dumps(node.half.finish()))
            ack = replace(ack, scores=tuple(self._scores(node.half.rank, meta)))
            joined = ack if joined is None else joined.aggregate(ack)
        for request in [one for one in self.active if one.request_id in scheduled]:
            request.num_computed_tokens += scheduled[request.request_id]
            if request.num_computed_tokens >= request.total:
                self._finish(request)
        self.half.update(self.lost(joined) if joined is not None else None)

    def _scores(self, rank: int, meta: StepMeta) -> Iterable[Scores]:
        """Of each layer its own, drawn anew in every round."""
        for request, blocks, _ in meta.score:
            values = self.random.random((LAYERS, blocks), dtype=np.float32)
            yield Scores(request=request, rank=rank, blocks=blocks, values=values.astype("<f4").tobytes())

    def _schedule(self) -> dict[str, int]:
        scheduled: dict[str, int] = {}
        preempted = False
        for request in list(self.active):
            if request not in self.active:
                continue
            count = self._count(request)
            while not self._allocate(request, count):
                if self.half.frees_soon():
                    self.skipped += 1
                    return scheduled
                preempted = True
                victim = self.active.pop()
                scheduled.pop(victim.request_id, None)
                self.pool.free_blocks(reversed(self.tables.pop(victim.request_id)))
                self.hashed.pop(victim.request_id)
                victim.num_computed_tokens = 0
                self.waiting.appendleft(victim)
                self.preemptions += 1
                if victim is request:
                    return scheduled
            scheduled[request.request_id] = count
        while not preempted and self.waiting and len(self.active) < self.running:
            request = self.waiting[0]
            hits = self._hits(request)
            fits = -(-request.num_prompt_tokens // BLOCK) - len(hits) + sum(1 for hit in hits if hit.ref_cnt == 0)
            if fits + 1 > self.pool.get_num_free_blocks():
                break
            self.waiting.popleft()
            self.pool.touch(hits)
            self.tables[request.request_id] = list(hits)
            self.hashed[request.request_id] = len(hits)
            request.num_computed_tokens = len(hits) * BLOCK
            count = self._count(request)
            assert self._allocate(request, count)
            self.active.append(request)
            scheduled[request.request_id] = count
        return scheduled

    def _count(self, request: Request) -> int:
        left = request.num_prompt_tokens - request.num_computed_tokens
        return min(self.chunk, left) if left > 0 else 1

    def _hits(self, request: Request) -> list[Block]:
        hits: list[Block] = []
        for end in range(BLOCK, request.num_prompt_tokens, BLOCK):
            block = self.pool.cached.get("|".join(request.tokens[:end])) if self.prefix else None
            if block is None:
                break
            hits.append(block)
        return hits

    def _allocate(self, request: Request, count: int) -> bool:
        table, end = self.tables[request.request_id], request.num_computed_tokens + count
        need = -(-end // BLOCK) - len(table)
        if need > self.pool.get_num_free_blocks():
            return False
        table += self.pool.get_new_blocks(max(0, need))
        for at in range(self.hashed.get(request.request_id, 0), end // BLOCK):
            # vLLM names a block once it will be full, before it is written
            block = table[at]
            if self.prefix and not block.is_null:
                assert block.block_hash is None
                name = "|".join(request.tokens[: (at + 1) * BLOCK])
                block.block_hash = name
                self.pool.cached.setdefault(name, block)
        self.hashed[request.request_id] = max(self.hashed.get(request.request_id, 0), end // BLOCK)
        return True

    def _finish(self, request: Request) -> None:
        for queue in (self.active, self.waiting):
            if request in queue:
                queue.remove(request)
        self.half.finish(request.request_id)
        self.pool.free_blocks(reversed(self.tables.pop(request.request_id, [])))
        self.hashed.pop(request.request_id, None)

    # ---- the model

    def _forward(self, node: Rank, meta: StepMeta, scheduled: dict[str, int]) -> None:
        rows = [request for request in self.active if request.request_id in scheduled]
        if not rows:
            return
        self.handed = {one.request.request_id for one in meta.handed}
        for request in rows:
            for at in range(request.num_computed_tokens, request.num_computed_tokens + scheduled[request.request_id]):
                block = self.tables[request.request_id][at // BLOCK]
                assert not block.is_null, "a step writes a block that vLLM's table has let go of"
                for layer, memory in enumerate(node.layers):
                    place = slice(at % BLOCK * TOKEN_BYTES, (at % BLOCK + 1) * TOKEN_BYTES)
                    memory[block.block_id, place] = np.frombuffer(
                        rows_of(request.tokens[at], layer, node.half.rank), np.uint8
                    )
        width = max(len(self.tables[request.request_id]) for request in rows) + 2
        table = np.zeros((len(rows), width), dtype=np.int32)
        lengths = np.zeros(len(rows), dtype=np.int32)
        for row, request in enumerate(rows):
            ids = [block.block_id for block in self._worker_table(request)]
            table[row, : len(ids)] = ids
            lengths[row] = request.num_computed_tokens + scheduled[request.request_id]
        tables, shorter = layer_tables(table, lengths, meta.handed, node.half.device, BLOCK)
        for row, request in enumerate(rows):
            for layer in range(LAYERS):
                length = int(lengths[row] if shorter is None else shorter[layer, row])
                self._read(node, request, layer, tables[layer, row], length, int(lengths[row]))

    def _worker_table(self, request: Request) -> list[Any]:
        """vLLM's worker never hears that an entry of a running request's table was let go of: it only appends."""
        return self.tables[request.request_id]

    def _read(
        self, node: Rank, request: Request, layer: int, table: np.ndarray[Any, Any], length: int, whole: int
    ) -> None:
        """Every row that attention reads is that of the position which the view, or vLLM's table, says it is."""
        state = self.half.driver.state.requests.get(request.request_id)
        handed = request.request_id in self.handed
        view = state.view if state is not None and state.life == "RUNNING" and handed else None
        slots = view.logical.row(layer).tolist() if view is not None else []
        replaced = (whole - length) // BLOCK + len(slots)
        order = [*slots, *range(replaced, -(-whole // BLOCK))]
        assert -(-length // BLOCK) == len(order)
        for slot, logical in enumerate(order):
            for at in range(logical * BLOCK, min((logical + 1) * BLOCK, whole)):
                place = slice(at % BLOCK * TOKEN_BYTES, (at % BLOCK + 1) * TOKEN_BYTES)
                got = node.layers[layer][table[slot], place].tobytes()
                want = rows_of(request.tokens[at], layer, node.half.rank)
                assert got == want, f"{request.request_id} layer {layer} rank {node.half.rank} position {at}"
                self.reads += 1
