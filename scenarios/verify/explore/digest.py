"""One name for a part of a world's state: equal parts, equal names."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec
import numpy as np

Part = TypeVar("Part")


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} has no canonical form")


_ENCODER = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain)


def digest_of(parts: object) -> bytes:
    """16 bytes over the canonical form; sets and dicts have no order."""
    return hashlib.blake2b(_ENCODER.encode(parts), digest_size=16).digest()


def unordered(items: Iterable[object]) -> list[bytes]:
    """A canonical form of things whose order says nothing."""
    return sorted(_ENCODER.encode(item) for item in items)


class Parts(Generic[Part]):
    """Every distinct part once, by number from 0 on."""

    def __init__(self, canonical: Callable[[Part], object], most: int) -> None:
        """most: numbers that there are."""
        self._canonical, self._most = canonical, most
        self._numbers: dict[bytes, int] = {}
        self.items: list[Part] = []

    def number(self, part: Part) -> int:
        """The number of an equal part that is known, or a new one. Raises OverflowError when there are no more."""
        name = digest_of(self._canonical(part))
        found = self._numbers.get(name)
        if found is None:
            if len(self.items) >= self._most:
                raise OverflowError(f"a world has at most {self._most} parts of a kind")
            found = self._numbers[name] = len(self.items)
            self.items.append(part)
        return found

    def __getitem__(self, number: int) -> Part:
        return self.items[number]

    def __len__(self) -> int:
        return len(self.items)
