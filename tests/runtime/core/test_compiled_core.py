"""What the compiled core owes the process it lives in: no word and no kernel makes it end."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import force_setattr, replace
from tests.runtime.rig import RANKS, CoreRig, make_settings, rows, selection
from tests.runtime.storms import Storm

from kvsweep.kernels.table import choose_kernels
from kvsweep.ledger import compiled
from kvsweep.ledger.fold import apply_all
from kvsweep.ledger.ids import RequestKey, int32_bytes
from kvsweep.ledger.messages import Done, Retain, Select
from kvsweep.ledger.state import EMPTY, State
from kvsweep.runtime.core.core import Core

pytestmark = pytest.mark.skipif(compiled.fold is None, reason="the compiled fold was not built")

KEPT_FOR_EVER = """
import ctypes
from kvsweep.scenarios.measure.bench.round import QUICK, RoundBench
bench = RoundBench(QUICK, "memory:", seed=1)
bench.run(1, lambda done, of: None)
assert bench.driver.core._standing._core is not None
ctypes.pythonapi.Py_IncRef(ctypes.py_object(bench))
"""


def test_a_program_that_ends_with_an_open_driver_says_nothing_of_it() -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT_FOR_EVER], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("seed", [5, 6])
def test_an_interrupt_while_a_turn_is_adopted_loses_no_event(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(seed)
    steps, standing = storm.driver.core.steps, storm.driver.core._standing
    forget, hit = steps.forget_fence, []

    def interrupted(request: RequestKey, number: int) -> None:
        if not hit and standing._core is not None and standing._decided is None:
            hit.append(number)
            forget(request, number)
            raise KeyboardInterrupt
        forget(request, number)

    monkeypatch.setattr(steps, "forget_fence", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storm.run(2000)
    assert apply_all(EMPTY, [event for batch in storm.log.batches for event in batch]) == storm.driver.state
    assert storm.run(200).driver.read_only is None


def test_a_text_that_no_log_could_keep_stops_no_other_request() -> None:
    """A core without a log takes any text."""
    made = CoreRig()
    key, other = made.open("a"), made.open("b")
    made.started(made.select(key, {0: (0, 3), 1: (1, 2)}, idempotency_key="\ud800"))
    made.upload(other, {0: (0, 3), 1: (1, 2)})


# ---- kernels whose answer makes no sense


class Astray:
    """Kernels that plan other rows and ids than the real ones."""

    def __init__(self, row_ptr: list[int], ids: list[int]) -> None:
        self._row_ptr, self._ids = np.array(row_ptr, dtype=np.int32), np.array(ids, dtype=np.int32)
        self._real: Any = choose_kernels("auto")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def plan_diff(self, *args: Any, **kwargs: Any) -> Any:
        real = self._real.plan_diff(*args, **kwargs)
        fields = {name: getattr(real, name) for name in ("kind", "new_per_row", "common_new_slots", "pad")}
        upload = SimpleNamespace(row_ptr=self._row_ptr, ids=self._ids)
        return SimpleNamespace(upload=upload, unfilled_per_row=real.unfilled_per_row, **fields)


@pytest.mark.parametrize("row_ptr", [[-6, 0, 4], [0, 12, 4], [0, 4, 2], [0, 4], [0, 2, 4, 4]])
def test_rows_of_a_kernel_that_do_not_fit_are_left_to_python(row_ptr: list[int]) -> None:
    with pytest.raises((ValueError, IndexError)) as planned:
        select_with(Astray(row_ptr, [0, 3, 1, 2]), compiled=False)
    with pytest.raises(type(planned.value)):
        select_with(Astray(row_ptr, [0, 3, 1, 2]), compiled=True)


def test_ids_of_a_kernel_below_0_are_left_to_python() -> None:
    with pytest.raises(IndexError):
        select_with(Astray([0, 2, 4], [0, -(2**31), 1, 2]), compiled=True)


def select_with(kernels: Any, *, compiled: bool) -> None:
    made = CoreRig()
    made.core = Core(make_settings(), kernels=kernels, compiled=compiled, state=made.core.state)
    key = made.open(blocks=8)
    made.send(Select(selection=selection(made.layout, key, 1, {0: (0, 3), 1: (1, 2)}), idempotency_key="s"))


# ---- words and states that nobody has checked

NO_ROWS = [int32_bytes([0, 100_000_000, 200_000_000]), int32_bytes([-6, 0, 4]), int32_bytes([0, 4]), b""]


def ready() -> tuple[CoreRig, RequestKey, Any]:
    """A request with a view, and the compiled core."""
    made = CoreRig()
    key = made.open(blocks=8)
    made.upload(key, {0: [0, 3], 1: [1, 2]})
    return made, key, made.core._standing._ready()


@pytest.mark.parametrize("row_ptr", NO_ROWS)
def test_words_with_rows_that_do_not_fit_are_left_to_python(row_ptr: bytes) -> None:
    made, key, core = ready()
    right = selection(made.layout, key, 2, {0: (0, 3), 1: (1, 4)})
    for field in ("logical_blocks_by_layer", "ranked_tail_by_layer"):
        wrong = replace(getattr(right, field))
        force_setattr(wrong, "row_ptr_bytes", row_ptr)
        told = replace(right, **{field: wrong})
        assert core.handle(Select(selection=told, idempotency_key="t")) is None
    said = {"keep": rows({0: [0, 1], 1: [1]}), "adopt": rows({0: [], 1: []})}
    for field in said:
        wrong = replace(said[field])
        force_setattr(wrong, "row_ptr_bytes", row_ptr)
        both = {**said, field: wrong}
        word = Retain(request=key, map_revision=1, selection_revision=1, idempotency_key="t", **both)
        assert core.handle(word) is None
    assert not core.torn()


def other(**parts: Any) -> Callable[[State], Any]:
    return lambda state: replace(state, **parts)


ODD_STATES: dict[str, Callable[[State], Any]] = {
    "a number": lambda state: 5,
    "pool": other(pool=5),
    "requests": other(requests=5),
    "a request": other(requests={"a": 5}),
    "ownership": other(ownership=5),
}


@pytest.mark.parametrize("odd", ODD_STATES.values(), ids=ODD_STATES)
def test_only_a_state_is_gone_on_from(odd: Callable[[State], Any]) -> None:
    made, key, core = ready()
    word = Select(selection=selection(made.layout, key, 2, {0: (0, 4), 1: (1, 2)}), idempotency_key="t")
    made.send(word)
    operation = made.request(key).upload.open.operation  # type: ignore[union-attr]
    before = made.core.state
    rank, process_epoch = RANKS[0]
    done = Done(operation=operation, rank=rank, process_epoch=process_epoch, outcome="completed")
    assert core.handle(done) is not None
    with pytest.raises((TypeError, KeyError)):
        core.state(odd(before))
    assert core.state(before).requests["a"].upload.open.outcomes == ((rank, "completed"),)
