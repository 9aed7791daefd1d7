"""Choosing tokens from logits: greedy, or with one counted draw for each emitted token.

The n-th emitted token of a request depends on (seed, request, n, logits) and on nothing else. So speculative decoding
gives the same tokens as plain decoding, and a repeated call that restores the state gives the same bytes again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_STATE_BYTES = 24  # 16 of the key, 8 of the counter


class Sampler:
    """The token choice of one request; its whole state is a counter of draws under a key of (seed, request)."""

    def __init__(self, *, temperature: float, seed: int, request_id: str) -> None:
        """temperature 0 is greedy (no draws, the smallest id wins a tie). Raises ValueError for another bad value."""
        if not (np.isfinite(temperature) and temperature >= 0):
            raise ValueError(f"temperature: expected a finite number >= 0, got {temperature}")
        if seed < 0:
            raise ValueError(f"seed: expected an integer >= 0, got {seed}")
        self.temperature = temperature
        self._key = hashlib.sha256(f"{seed}\0{request_id}".encode()).digest()[:16]
        self._draws = 0

    @property
    def draws(self) -> int:
        """Draws made so far: the tokens emitted, or 0 when greedy."""
        return self._draws

    def sample(self, logits: Tensor) -> int:
        """Emit a token from float [vocab] logits: one draw, counted. Raises ValueError for NaN or a wrong shape."""
        token = self.propose(logits, ahead=0)
        if self.temperature > 0:
            self._draws += 1
        return token

    def propose(self, logits: Tensor, *, ahead: int) -> int:
        """The token that `sample` would emit from these logits after `ahead` (>= 0) more tokens; no state changes.

        A draft that proposes with the coming draws of its target agrees with it as often as their logits allow.
        """
        if ahead < 0:
            raise ValueError(f"ahead: expected at least 0 tokens, got {ahead}")
        row = _row(logits)
        if self.temperature == 0:
            return int(np.argmax(row))
        weights = np.exp((row - row.max()) / self.temperature)
        ladder = np.cumsum(weights)
        # The first token whose step passes the draw. The sum is at least 1 and the draw at most 1 - 2**-53, so their
        # product stays below the sum; and a token without weight has no step to pass it with.
        return int(np.searchsorted(ladder, self._uniform(self._draws + ahead) * ladder[-1], side="right"))

    def state(self) -> bytes:
        """Key and counter, 24 bytes: equal bytes mean that equal logits give equal tokens from here on."""
        return self._key + self._draws.to_bytes(8, "little")

    def restore(self, state: bytes) -> None:
        """Return to an earlier `state()` of the same seed and request. Raises ValueError for any other bytes."""
        if len(state) != _STATE_BYTES or state[:16] != self._key:
            raise ValueError(f"state: expected {_STATE_BYTES} bytes of this seed and request, got {state.hex()}")
        self._draws = int.from_bytes(state[16:], "little")

    def _uniform(self, index: int) -> float:
        """The index-th draw of this request, in [0, 1): a counter-based generator needs no earlier draw."""
        generator = np.random.Philox(key=int.from_bytes(self._key, "little"), counter=index)
        return float(int(generator.random_raw()) >> 11) * 2.0**-53


def verify_tokens(
    target_logits: Tensor, drafted: Sequence[int], sampler: Sampler, *, stop: Collection[int] = ()
) -> list[int]:
    """The tokens that plain decoding would emit, as far as the draft was right, and one more.

    target_logits  float [len(drafted) + 1, vocab]; row j is the target's, given the first j drafted tokens
    drafted        the draft's proposals in order
    stop           ids after which nothing is emitted (end of text)
    Returns 1 to len(drafted) + 1 tokens; `sampler` has drawn once for each of them.
    Raises ValueError for a wrong shape.
    """
    if target_logits.ndim != 2 or target_logits.shape[0] != len(drafted) + 1:
        shape = tuple(target_logits.shape)
        raise ValueError(f"target_logits: expected [{len(drafted) + 1}, vocab], got {shape}")
    emitted: list[int] = []
    for index in range(len(drafted) + 1):
        token = sampler.sample(target_logits[index])
        emitted.append(token)
        if token in stop or index == len(drafted) or token != drafted[index]:
            break
    return emitted


def _row(logits: Tensor) -> npt.NDArray[np.float64]:
    if logits.ndim != 1 or logits.shape[0] < 1:
        raise ValueError(f"logits: expected [vocab], got shape {tuple(logits.shape)}")
    row: npt.NDArray[np.float64] = logits.detach().to(torch.float64).numpy()
    if not bool(np.isfinite(row).all()):
        index = int(np.flatnonzero(~np.isfinite(row))[0])
        raise ValueError(f"logits[{index}]: expected a finite number, got {row[index]}")
    return row
