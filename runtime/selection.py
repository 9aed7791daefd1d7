"""From block scores to a selection: sink, recent and the best of the rest, in the order (−score, block id)."""

import numpy as np
import numpy.typing as npt

from kvsweep.kernels.table import Kernels, choose_kernels
from kvsweep.ledger.errors import BudgetError, LayoutError, NonFiniteScore
from kvsweep.ledger.ids import HOLE, Logical, RequestKey, Rows, int32_bytes, no_rows
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import BlockSelection
from kvsweep.ledger.ragged import even_rows
from kvsweep.runtime.settings import SelectionSettings

Float32 = npt.NDArray[np.float32]


def select_blocks(
    scores: Float32,
    *,
    request: RequestKey,
    revision: int,
    layout: Layout,
    policy: SelectionSettings,
    incumbents: Rows[Logical] | None = None,
    kernels: Kernels | None = None,
    ranked_tail: bool = True,
) -> BlockSelection:
    """Choose whole blocks for every active layer.

    scores      float32[active layers, whole blocks]; whole, confirmed blocks only; finite
    incumbents  resident blocks per layer, or HOLE: their scores count `incumbent_factor` times (hysteresis)
    kernels     what ranks; None takes the native one where it was built
    ranked_tail False leaves the tail out: only a table that all layers share is ever padded from it
    The first `sink_blocks` and the last `recent_blocks` are always in and count in the budget; the selected pool is
    what lies between. Raises NonFiniteScore(layer, block), LayoutError (shape), BudgetError (on_tight_budget="refuse").
    """
    layers = layout.active_layers
    if scores.ndim != 2 or scores.shape[0] != len(layers) or scores.dtype != np.float32:
        raise LayoutError(
            "scores", f"float32 of shape [{len(layers)}, whole blocks]", f"{scores.dtype} of shape {scores.shape}"
        )
    whole = scores.shape[1]
    _refuse_non_finite(scores, layers)
    sink, recent, budget = effective_budget(whole, policy)
    counted = _counted(scores, layers, policy, incumbents)
    if counted is not scores:
        _refuse_non_finite(counted, layers)  # finite scores may leave float32 when raised or summed
    pool = np.ascontiguousarray(counted[:, sink : whole - recent])
    chosen, kernels = budget - sink - recent, kernels or choose_kernels()
    if ranked_tail:
        ranked = kernels.rank_blocks(pool) + np.int32(sink)
        best, rest = np.sort(ranked[:, :chosen], axis=1), ranked[:, chosen:]
    else:
        best, rest = kernels.select_ascending(pool, chosen) + np.int32(sink), np.empty((len(layers), 0), dtype=np.int32)
    protected = np.arange(budget, dtype=np.int32)  # right at both ends, and replaced between them
    protected[budget - recent :] += whole - budget
    wanted = np.tile(protected, (len(layers), 1))
    wanted[:, sink : budget - recent] = best
    return BlockSelection(
        request=request,
        selection_revision=revision,
        block_size=layout.block_size,
        logical_blocks_by_layer=even_rows(layers, wanted),
        ranked_tail_by_layer=even_rows(layers, rest),
        group_by_layer=int32_bytes([layout.layers[layer].group for layer in layers]),
        whole_blocks=whole,
        effective_budget_blocks=budget,
    )


def select_tokens(
    scores: Float32,
    *,
    request: RequestKey,
    revision: int,
    layout: Layout,
    policy: SelectionSettings,
    kernels: Kernels | None = None,
) -> BlockSelection:
    """Choose single tokens for every active layer: the token method, a policy to compare whole blocks with (C1).

    scores  float32[active layers, whole blocks * block_size]; tokens of whole, confirmed blocks only; finite
    The tokens of the first `sink_blocks` and the last `recent_blocks` are always in and count in the budget, which is
    what the budget in whole blocks holds; the best of the rest come in the order (−score, position). Raises as
    `select_blocks`; NonFiniteScore names the block of the token.
    """
    layers, size = layout.active_layers, layout.block_size
    if scores.ndim != 2 or scores.shape[0] != len(layers) or scores.dtype != np.float32 or scores.shape[1] % size:
        raise LayoutError(
            "scores",
            f"float32 of shape [{len(layers)}, whole blocks of {size} tokens]",
            f"{scores.dtype} of shape {scores.shape}",
        )
    whole = scores.shape[1] // size
    sink, recent, budget = effective_budget(whole, policy)
    counted = _shared(scores, policy)
    for row in (scores, counted):
        _refuse_non_finite(row.reshape(len(layers), whole, size).sum(axis=2), layers)
    chosen = (budget - sink - recent) * size
    ranked = (kernels or choose_kernels()).select_ascending(
        np.ascontiguousarray(counted[:, sink * size : (whole - recent) * size]), chosen
    ) + np.int32(sink * size)
    first, last = np.arange(sink * size), np.arange((whole - recent) * size, whole * size)
    return BlockSelection(
        request=request,
        selection_revision=revision,
        block_size=size,
        logical_blocks_by_layer=Rows.of({layer: np.arange(budget) for layer in layers}),
        ranked_tail_by_layer=no_rows(layers),
        group_by_layer=int32_bytes([layout.layers[layer].group for layer in layers]),
        whole_blocks=whole,
        effective_budget_blocks=budget,
        tokens_by_layer=Rows.of(
            {layer: np.concatenate((first, ranked[row], last)) for row, layer in enumerate(layers)}
        ),
    )


def effective_budget(whole_blocks: int, policy: SelectionSettings) -> tuple[int, int, int]:
    """(sink, recent, budget) in blocks, as they can be granted for a sequence of this many whole blocks (E7)."""
    sink = min(policy.sink_blocks, whole_blocks)
    recent = min(policy.recent_blocks, whole_blocks - sink)
    budget = int(policy.budget * whole_blocks)
    if sink + recent > budget:
        if policy.on_tight_budget == "refuse":
            raise BudgetError(budget, sink + recent)
        budget = sink + recent
    return sink, recent, budget


def _refuse_non_finite(scores: Float32, layers: tuple[int, ...]) -> None:
    """E2 on every whole block, protected ones too: a NaN anywhere means that the scorer is wrong."""
    if bool(np.isfinite(scores).all()):
        return
    bad = np.argwhere(~np.isfinite(scores))
    if bad.size:
        row, block = (int(index) for index in bad[0])
        raise NonFiniteScore(layers[row], block, float(scores[row, block]))


def _counted(
    scores: Float32, layers: tuple[int, ...], policy: SelectionSettings, incumbents: Rows[Logical] | None
) -> Float32:
    """Scores as they are compared: incumbents raised (a negative score too), then summed where layers share a list."""
    counted = scores
    for layer, ids in incumbents.items() if incumbents is not None else ():
        if ids.size and int(ids.min()) < HOLE:
            raise LayoutError(f"incumbents[{layer}]", f"block ids or HOLE ({HOLE})", str(int(ids.min())))
    with np.errstate(over="ignore"):
        if incumbents is not None and policy.incumbent_factor != 1.0:
            counted = scores.copy()
            for row, layer in enumerate(layers):
                blocks = incumbents.row(layer)
                blocks = blocks[(blocks != HOLE) & (blocks < scores.shape[1])]
                counted[row, blocks] += np.abs(counted[row, blocks]) * np.float32(policy.incumbent_factor - 1.0)
    return _shared(counted, policy)


def _shared(scores: Float32, policy: SelectionSettings) -> Float32:
    """The sum over the layers for each of them, where they share a list."""
    if not policy.shared:
        return scores
    with np.errstate(over="ignore"):
        total = scores.sum(axis=0, dtype=np.float64).astype(np.float32)
    return np.repeat(total[None, :], scores.shape[0], axis=0)
