"""Where the coordinator's ownership and vLLM's reference counts meet.

A block that the coordinator holds has one reference of ours in vLLM's pool, whatever vLLM itself refers to. It comes in
one of two ways. *Taken*: a plan needs destinations, and we take free blocks as any request does. *Lent*: vLLM gave the
block to a request and writes it; we add a reference for as long as it stands in the tail, is stored, or is fenced. Only
taken blocks are ever written by us. A block that nobody holds any more loses our reference, and vLLM decides whether
that made it free.

vLLM may lend one block to several requests, a shared prefix. The relation has one owner for an area, so a block that is
lent again goes by an *alias*: an id behind the pool's own ids, which stands for the block and is only ever read.
"""

import logging
from collections.abc import Iterable, Sequence, Set
from typing import Any, Protocol

import numpy as np

from kvsweep.ledger.errors import DoubleFree, LogError
from kvsweep.ledger.ids import Int32, Physical, Rows, S, int32_bytes, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import OpenTail, Preempt, Release, Reserve, Reserved
from kvsweep.transports.pools import CpuPool, DevicePools, FreeList, Pools


class EngineBlock(Protocol):
    """vLLM's KVCacheBlock, as far as it is looked at."""

    block_id: int
    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> Any: ...


class EngineBlockPool(Protocol):
    """vLLM's BlockPool, as far as it is used."""

    null_block: EngineBlock
    num_gpu_blocks: int

    def get_num_free_blocks(self) -> int: ...
    def get_new_blocks(self, num_blocks: int) -> list[EngineBlock]: ...
    def touch(self, blocks: Sequence[EngineBlock]) -> None: ...
    def free_blocks(self, ordered_blocks: Iterable[EngineBlock]) -> None: ...


class EnginePools(Pools):
    """Answers `Reserve` out of vLLM's pool and obeys `Release`. One KV-cache group.

    poison  blocks that went back to vLLM's free list without a hash since the list was last taken: nobody reads them
    """

    def __init__(self, layout: Layout, engine: EngineBlockPool, cpu: CpuPool, *, aliases: int, headroom: int) -> None:
        """
        aliases   ids behind the pool's own ones, for blocks that are lent more than once at a time
        headroom  free blocks that are never taken
        """
        super().__init__(DevicePools(layout, (engine.num_gpu_blocks + aliases,)), cpu)
        self.engine = engine
        self.headroom = headroom
        self.poison: list[int] = []
        self._aliases = FreeList("aliases of shared blocks", aliases, first=engine.num_gpu_blocks)
        self._ours: dict[int, EngineBlock] = {}
        self._offered: Sequence[EngineBlock] = ()

    @property
    def held(self) -> int:
        """References of ours in vLLM's pool."""
        return len(self._ours)

    @property
    def ours(self) -> Set[int]:
        """Ids, aliases among them, that a reference of ours stands for."""
        return self._ours.keys()

    @property
    def room(self) -> int:
        """Blocks that a plan could take now."""
        return max(0, self.engine.get_num_free_blocks() - self.headroom)

    def offer(self, blocks: Sequence[EngineBlock]) -> None:
        """What the next OpenTail is about: vLLM's blocks of the missing logical blocks, in order."""
        self._offered = blocks

    def reserve(self, ask: Reserve) -> Reserved:
        """The answer, with the same cause. Nothing is stored for a preemption: vLLM computes all of it again."""
        (count,) = ask.device
        if isinstance(ask.cause, OpenTail):
            given = self._lend(count)
            free = self._aliases.free
        elif isinstance(ask.cause, Preempt):
            given, free = None, self.cpu.full.free
        else:
            given, free = self._take(count), self.room
        if given is not None and ask.cpu_full + ask.cpu_copy:
            return self._with_cpu(ask, given)
        return Reserved(
            cause=ask.cause,
            device=None if given is None else (given.tobytes(),),
            cpu_full=b"",
            cpu_copy=b"",
            free=free,
        )

    def release(self, effect: Release) -> None:
        """Give our references back. Raises DoubleFree for a block that is not ours."""
        (blocks,) = (int32_view(ids) for ids in effect.device)
        back = []
        for number in blocks.tolist():
            block = self._ours.pop(number, None)
            if block is None:
                raise DoubleFree("vLLM's pool", number)
            if number >= self.engine.num_gpu_blocks:
                self._aliases.release(np.asarray([number], dtype=np.int32))
            back.append(block)
        self.engine.free_blocks(back)
        self.poison += [block.block_id for block in back if block.ref_cnt == 0 and block.block_hash is None]
        self.cpu.release(int32_view(effect.cpu))

    def let_go(self, table: list[EngineBlock], logical: Iterable[int]) -> None:
        """vLLM's table of a request gets the null block in their place, and vLLM drops one reference of each."""
        back = []
        for at in logical:
            if not table[at].is_null:
                back.append(table[at])
                table[at] = self.engine.null_block
        self.engine.free_blocks(back)

    def take_poison(self) -> tuple[int, ...]:
        """Blocks to overwrite, each once."""
        found, self.poison = tuple(dict.fromkeys(self.poison)), []
        return found

    def real(self, rows: Rows[S]) -> Rows[S]:
        """The same rows with every alias replaced by the block that it stands for."""
        ids, first = rows.ids, self.engine.num_gpu_blocks
        if not ids.size or int(ids.max()) < first:
            return rows
        found = ids.copy()
        for at in np.flatnonzero(ids >= first).tolist():
            found[at] = self._ours[int(ids[at])].block_id
        return Rows(
            layer_bytes=rows.layer_bytes, row_ptr_bytes=rows.row_ptr_bytes, id_bytes=found.astype("<i4").tobytes()
        )

    # ---- inside

    def _take(self, count: int) -> Int32 | None:
        if count > self.room and count:
            return None
        blocks = self.engine.get_new_blocks(count) if count else []
        self._ours.update((block.block_id, block) for block in blocks)
        return np.asarray([block.block_id for block in blocks], dtype=np.int32)

    def _lend(self, count: int) -> Int32 | None:
        """Our reference on vLLM's own blocks; an alias where we have one already. None where aliases run out."""
        blocks, self._offered = self._offered, ()
        if len(blocks) != count:
            return None
        again = [at for at, block in enumerate(blocks) if block.block_id in self._ours]
        aliases = self._aliases.reserve(len(again))
        if aliases is None:
            return None
        ids = np.asarray([block.block_id for block in blocks], dtype=np.int32)
        ids[again] = aliases
        self.engine.touch(blocks)
        self._ours.update(zip(ids.tolist(), blocks, strict=True))
        return ids

    def _with_cpu(self, ask: Reserve, given: Int32) -> Reserved:
        full, copies = self.cpu.full, self.cpu.copies
        if ask.cpu_full > full.free or ask.cpu_copy > copies.free:
            self.release(Release(device=(given.tobytes(),), cpu=b""))
            return Reserved(cause=ask.cause, device=None, cpu_full=b"", cpu_copy=b"", free=full.free)
        found, other = full.reserve(ask.cpu_full), copies.reserve(ask.cpu_copy)
        return Reserved(
            cause=ask.cause,
            device=(given.tobytes(),),
            cpu_full=b"" if found is None else found.tobytes(),
            cpu_copy=b"" if other is None else other.tobytes(),
            free=full.free,
        )


_LOG = logging.getLogger("kvsweep")


class Unrecorded:
    """Gives one engine's blocks back when nothing can be recorded any more; nothing before `note` is called.

    The ledger's own way, retire after commit and fence, ends with the ledger. What is left is what the ranks say of
    their steps. A worker performs everything that a step carries before its model runs, and no plan leaves any more:
    once every rank has done a step, nothing that was sent with it or before it reads or writes, and no earlier view is
    read. A block that no running request's view names from a step on is therefore quiet when that step has been done.
    """

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
