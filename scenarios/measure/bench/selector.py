"""Selector: the k best of each row by (-score, id), ranked or ascending."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kvsweep.kernels import reference
from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Case, copy_of


def cases(native: NativeKernels, rng: np.random.Generator, *, quick: bool) -> Iterator[Case]:
    rows, n = (2, 5_000) if quick else (80, 32_768)
    scores = rng.standard_normal((rows, n)).astype(np.float32)
    for k in (64,) if quick else (256, 2_048, 4_096):
        yield _case(native, scores, k, ranked=True)
        yield _case(native, scores, k, ranked=False)
    yield _case(native, scores[:1, :8].copy(), 4, ranked=True)


def _case(native: NativeKernels, scores: np.ndarray, k: int, *, ranked: bool) -> Case:
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
