"""The token method: chosen tokens are packed into whole copy destinations, a new set with every selection.

For comparing policies only. A packed block has no place in the sequence, so nothing can be held over, named by source,
remapped or kept: each upload copies and replaces the whole set.
"""

import numpy as np

from kvsweep.ledger.errors import Refused
from kvsweep.ledger.ids import HOLE, Int32, Rows, Source, Token, int32_bytes, int32_view
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.messages import BlockSelection
from kvsweep.ledger.state import RequestState


def check_method(request: RequestState, selection: BlockSelection, method: str) -> None:
    """Refuse a selection of the other method: which one runs is settled at the start (D3)."""
    got = "block" if selection.tokens_by_layer is None else "token"
    if got != method:
        reason = f"method: expected a selection of the {method} method, got one of the {got} method"
        raise Refused(request.key, "Select", request.describe(), (), reason)


def check_tokens(request: RequestState, selection: BlockSelection, tokens: Rows[Token], layout: Layout) -> None:
    """Refuse tokens outside the whole blocks, out of order, or in another number of blocks than they fill."""

    def refuse(reason: str) -> None:
        raise Refused(request.key, "Select", request.describe(), (), reason)

    active = list(layout.active_layers)
    if tokens.layers.tolist() != active:
        refuse(f"tokens_by_layer: expected a row for each active layer {active}, got {tokens.layers.tolist()}")
    end = selection.whole_blocks * layout.block_size
    for layer, ids in tokens.items():
        if ids.size and (int(ids[0]) < 0 or int(ids[-1]) >= end or bool(np.any(ids[1:] <= ids[:-1]))):
            refuse(f"tokens_by_layer[{layer}]: expected ascending positions in [0, {end}), got {ids.tolist()}")
        packed = selection.logical_blocks_by_layer.row(layer)
        if packed.tolist() != list(range(-(-ids.size // layout.block_size))):
            refuse(f"logical_blocks_by_layer[{layer}]: expected the blocks that {ids.size} tokens fill, from 0 on")
    if selection.ranked_tail_by_layer.size:
        refuse("ranked_tail_by_layer: expected none, since nothing is padded")


def places_of(request: RequestState, tokens: Rows[Token], block_size: int) -> Rows[Token] | None:
    """Where each token stands in the CPU pool; None where its block is not valid there."""
    sources: Int32 = int32_view(request.source)
    blocks = tokens.ids // block_size
    if blocks.size and (int(blocks.max()) >= sources.size or bool(np.any(sources[blocks] == HOLE))):
        return None
    places = sources[blocks].astype(np.int64) * block_size + tokens.ids % block_size
    return Rows.from_csr(layers=tokens.layers, row_ptr=tokens.row_ptr, ids=places)


def packed_into(tokens: Rows[Token], copied: bytes, block_size: int) -> Rows[Source]:
    """The j-th copy destination takes the j-th block's worth of every layer's tokens, each layer in its own area."""
    blocks, counts = int32_view(copied), -(-tokens.counts // block_size)
    return Rows.of(
        {layer: blocks[:count] for layer, count in zip(tokens.layers.tolist(), counts.tolist(), strict=True)}
    )


def valid_tokens(tokens: Rows[Token]) -> bytes:
    """Tokens of each layer, '<i4': what is valid in the packed blocks (D6)."""
    return int32_bytes(tokens.counts)
