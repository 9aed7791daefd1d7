"""Which blocks anybody at all holds: the relation turned round, so that a plan need not look at every request."""

from collections.abc import Iterable, Sequence

import numpy as np

from kvsweep.ledger.holding import Bools
from kvsweep.ledger.ids import Int32


class Taken:
    """bool a block, for each group's device blocks and for CPU blocks. Never changed: its methods give another one.

    Beyond the end of an array nothing is taken.
    """

    __slots__ = ("cpu", "device")

    def __init__(self, device: tuple[Bools, ...], cpu: Bools) -> None:
        self.device, self.cpu = device, cpu

    @classmethod
    def of(cls, device: Sequence[Iterable[Int32]], cpu: Iterable[Int32]) -> "Taken":
        """From lists of held blocks: per group for the device, and of the CPU."""
        return cls(tuple(_set(NOTHING, blocks, True) for blocks in device), _set(NOTHING, cpu, True))

    def with_(self, device: Sequence[Int32], cpu: Iterable[Int32]) -> "Taken":
        """These are held from here on; no group where `device` is empty."""
        return self._changed(device, cpu, True)

    def without(self, device: Sequence[Int32], cpu: Iterable[Int32]) -> "Taken":
        """Nobody holds these any more."""
        return self._changed(device, cpu, False)

    def _changed(self, device: Sequence[Int32], cpu: Iterable[Int32], held: bool) -> "Taken":
        groups = tuple(_set(old, (new,), held) for old, new in zip(self.device, device, strict=True)) if device else ()
        groups, marks = groups or self.device, _set(self.cpu, cpu, held)
        if marks is self.cpu and all(new is old for new, old in zip(groups, self.device, strict=True)):
            return self
        return Taken(groups, marks)

    def device_blocks(self, group: int, ids: Int32) -> Bools:
        """bool[n]: which of the group's blocks `ids` somebody holds."""
        return _get(self.device[group], ids)

    def cpu_blocks(self, ids: Int32) -> Bools:
        """bool[n]: which of the CPU blocks `ids` somebody holds."""
        return _get(self.cpu, ids)


NOTHING: Bools = np.zeros(0, dtype=np.bool_)


def _set(marks: Bools, parts: Iterable[Int32], held: bool) -> Bools:
    """The marks with those of the parts set; the same array where that changes nothing."""
    copied = False
    for ids in parts:
        if not ids.size:
            continue
        high = int(ids.max())
        if high >= marks.size:
            if not held:
                ids = ids[ids < marks.size]
            else:
                grown = np.zeros(max(high + 1, 2 * marks.size), dtype=np.bool_)
                grown[: marks.size] = marks
                marks, copied = grown, True
        if not copied:
            if bool((marks[ids] == held).all()):
                continue
            marks, copied = marks.copy(), True
        marks[ids] = held
    return marks


def _get(marks: Bools, ids: Int32) -> Bools:
    if not ids.size:
        return NOTHING
    if int(ids.max()) < marks.size:
        return marks[ids]
    found = np.zeros(ids.size, dtype=np.bool_)
    inside = ids < marks.size
    found[inside] = marks[ids[inside]]
    return found


def freed(before: Bools, after: Bools) -> Int32:
    """int32[n]: blocks that were held and are not any more, ascending."""
    if before is after:
        return np.empty(0, dtype=np.int32)
    gone = before.copy()
    shared = min(before.size, after.size)
    gone[:shared] &= ~after[:shared]
    return np.flatnonzero(gone).astype(np.int32)
