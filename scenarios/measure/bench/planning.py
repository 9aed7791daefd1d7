"""What plans a round: the diff planner, the selector, and the retention planner's classes and retired blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kvsweep.kernels import Csr, reference
from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, copy_of

PLANNER_SIZES = ((32, 256, 2_048), (80, 2_048, 32_768))
PLANNER_QUICK = ((2, 16, 256),)
PLANNER_SHORT = (1, 8, 2_048)


def planner_cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    """Selections are ascending, as the selector gives them; residents in slot order; half of what is wanted is held."""
    for rows, count, blocks in (*(PLANNER_QUICK if quick else PLANNER_SIZES), PLANNER_SHORT):
        want = np.stack([np.sort(rng.permutation(blocks)[:count]) for _ in range(rows)]).astype(np.int32)
        held = want.copy()
        for row in range(rows):
            others = np.setdiff1d(np.arange(blocks), want[row]).astype(np.int32)
            held[row] = rng.permutation(
                np.concatenate((want[row, : count // 2], rng.permutation(others)[: count - count // 2]))
            )
        yield _planner_case(native, want, held, blocks)


def _planner_case(native: NativeKernels, want: np.ndarray, held: np.ndarray, blocks: int) -> Case:
    rows, count = want.shape
    pointers = np.arange(0, rows * count + 1, count, dtype=np.int32)
    none = Csr(np.zeros(rows + 1, dtype=np.int32), np.empty(0, dtype=np.int32))
    wanted, resident = Csr(pointers, want.reshape(-1)), Csr(pointers, held.reshape(-1))
    lists = [(want[row].tolist(), held[row].tolist()) for row in range(rows)]
    torch_want, torch_held = torch.from_numpy(want).long(), torch.from_numpy(held).long()
    base = (np.arange(rows, dtype=np.int64) * blocks)[:, None]

    def ours() -> object:
        return native.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)

    def mask() -> object:
        marks = np.zeros(rows * blocks, dtype=np.bool_)
        marks[(want + base).reshape(-1)] = True
        marks[(held + base).reshape(-1)] = False
        found = np.flatnonzero(marks)
        return (found % blocks).astype(np.int32), np.searchsorted(found, base[:, 0])

    def lookup() -> object:
        """Not a plan of any input: it relies on want being ascending."""
        marks = np.zeros(rows * blocks, dtype=np.bool_)
        marks[(held + base).reshape(-1)] = True
        left = ~marks[(want + base).reshape(-1)].reshape(rows, count)
        return want[left], left.sum(axis=1)

    def table() -> object:
        return [np.sort(w[~np.isin(w, h, kind="table")]) for w, h in zip(want, held, strict=True)]

    def sets() -> object:
        return [sorted(set(w).difference(h)) for w, h in lists]

    def with_torch() -> object:
        marks = torch.zeros((rows, blocks), dtype=torch.bool)
        marks.scatter_(1, torch_want, True).scatter_(1, torch_held, False)
        return marks.nonzero()

    def check() -> bool:
        mine = native.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)
        plain = reference.plan_diff(wanted, none, resident, sequence_blocks=blocks, shared_table=False)
        return mine.upload.lists() == plain.upload.lists()

    return Case(
        path="diff planner",
        size=f"{rows} x {count:,} of {blocks:,}",
        ours=ours,
        check=check,
        peers={
            "numpy mask": mask,
            "numpy mask lookup": lookup,
            "numpy isin(table)": table,
            "python sets": sets,
            "torch": with_torch,
        },
        reads=[want, held],
        copy=copy_of(want.nbytes),
        limit="one read",
    )


def selector_cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    rows, n = (2, 5_000) if quick else (80, 32_768)
    scores = rng.standard_normal((rows, n)).astype(np.float32)
    for k in (64,) if quick else (256, 2_048, 4_096):
        yield _selector_case(native, scores, k, ranked=True)
        yield _selector_case(native, scores, k, ranked=False)
    yield _selector_case(native, scores[:1, :8].copy(), 4, ranked=True)


def _selector_case(native: NativeKernels, scores: np.ndarray, k: int, *, ranked: bool) -> Case:
    tensor = torch.from_numpy(scores)
    rows, n = scores.shape
    numbers = np.arange(n, dtype=np.uint64)
    plain = reference.select_top if ranked else reference.select_ascending
    chosen = native.select_top if ranked else native.select_ascending

    def composite() -> object:
        """The same order as ours: score and id in one number, which a partition cannot tie."""
        bits = (scores + np.float32(0.0)).view(np.int32)
        keys = (bits ^ ((bits >> 31) | np.int32(-(2**31)))).view(np.uint32)
        whole = ((~keys).astype(np.uint64) << np.uint64(32)) | numbers
        best = np.partition(whole, k - 1, axis=1)[:, :k]
        return np.sort(best & np.uint64(0xFFFFFFFF) if not ranked else best, axis=1).astype(np.int32)

    def topk() -> object:
        return torch.topk(tensor, k, dim=1, sorted=True)

    def topk_unsorted() -> object:
        return torch.topk(tensor, k, dim=1, sorted=False)[1].sort(dim=1)

    return Case(
        path="selector, ranked" if ranked else "selector, ascending",
        size=f"{rows} x {n:,}, k {k:,}",
        ours=lambda: chosen(scores, k),
        check=lambda: bool((chosen(scores, k) == plain(scores, k)).all()),
        peers={"torch.topk": topk, "numpy composite": composite}
        if ranked
        else {"torch.topk, sorted by id": topk_unsorted, "numpy composite": composite},
        reads=[scores],
        copy=copy_of(rows * k * 4),
        limit="one read",
    )


def retain_cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    rows, slots = (3, 64) if quick else (80, 8_192)
    shared = np.sort(rng.permutation(4 * slots)[:slots]).astype(np.int32)
    equal = np.repeat(shared[None, :], rows, axis=0)
    yield _classes(native, "all rows equal", equal)
    late = equal.copy()
    late[:, -1] += np.arange(rows, dtype=np.int32)
    yield _classes(native, "rows differ at the end", late)
    yield _classes(native, "short", equal[:1, :8].copy())
    blocks, owned, referenced = (4_096, 1_000, 300) if quick else (1 << 20, 328_000, 82_000)
    mine = rng.permutation(blocks)[:owned].astype(np.int32)
    yield _retired(native, "scattered", mine, rng.permutation(mine)[:referenced].copy(), blocks)
    yield _retired(native, "ascending", np.sort(mine), np.sort(rng.permutation(mine)[:referenced]), blocks)
    yield _retired(native, "short", mine[:8].copy(), mine[:2].copy(), 2_048 if int(mine[:8].max()) < 2_048 else blocks)


def _classes(native: NativeKernels, what: str, table: np.ndarray) -> Case:
    rows, slots = table.shape
    ragged = Csr(np.arange(0, rows * slots + 1, slots, dtype=np.int32), table.reshape(-1))

    def row_bytes() -> object:
        first: dict[bytes, int] = {}
        return [first.setdefault(table[row].tobytes(), row) for row in range(rows)]

    def equality() -> object:
        """Only whether all rows equal the first."""
        return (table == table[0]).all(axis=1)

    return Case(
        path=f"classes of rows, {what}",
        size=f"{rows} x {slots:,}",
        ours=lambda: native.row_classes(ragged),
        check=lambda: bool((native.row_classes(ragged) == reference.row_classes(ragged)).all()),
        peers={"dict of row bytes": row_bytes, "numpy equality": equality},
        reads=[table],
        copy=copy_of(table.nbytes),
        limit="one read",
    )


def _retired(native: NativeKernels, what: str, owned: np.ndarray, referenced: np.ndarray, blocks: int) -> Case:
    mine, theirs = owned.tolist(), referenced.tolist()

    def mask() -> object:
        marks = np.zeros(blocks, dtype=np.bool_)
        marks[owned] = True
        marks[referenced] = False
        return np.flatnonzero(marks).astype(np.int32)

    return Case(
        path=f"retired blocks, {what}",
        size=f"{owned.size:,} less {referenced.size:,} of {blocks:,}",
        ours=lambda: native.retired_blocks(owned, referenced, blocks=blocks),
        check=lambda: np.array_equal(
            native.retired_blocks(owned, referenced, blocks=blocks),
            reference.retired_blocks(owned, referenced, blocks=blocks),
        ),
        peers={"numpy mask": mask, "python sets": lambda: sorted(set(mine).difference(theirs))},
        reads=[owned, referenced],
        copy=copy_of(owned.nbytes),
        limit="one read",
    )
