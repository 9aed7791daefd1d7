"""The compiled kernels on every instruction set of this processor, and how they are held against the reference."""

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from kvsweep.kernels.table import why_not_native

if why_not_native() is not None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def native(request: pytest.FixtureRequest) -> Any:
    """NativeKernels on one instruction set; skipped where the processor lacks it."""
    from kvsweep.kernels.compiled import NativeKernels, available_isas

    if request.param not in available_isas():
        pytest.skip(f"this processor has no {request.param}")
    return NativeKernels(isa=request.param)


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Any, Any]:
    """(result or error, arguments afterwards) of a call on copies, in a form that compares."""
    arguments = tuple(clone(each) for each in arguments)
    named = {name: clone(each) for name, each in named.items()}
    try:
        result: Any = plain(call(*arguments, **named))
    except ValueError as error:
        result = (type(error).__name__, str(error))
    return result, (plain(arguments), plain(named))


def clone(value: Any) -> Any:
    """A deep copy, except that an array with gaps keeps them."""
    if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        return value
    return copy.deepcopy(value)


def plain(value: Any) -> Any:
    """Arrays with their dtype and shape as bytes, records as dictionaries."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


@pytest.fixture
def same(native: Any) -> Callable[..., Any]:
    """Calls one kernel in both forms on copies of the arguments; both must do the same. Returns what both gave."""
    from kvsweep.kernels import reference

    def compare(kernel: str, *arguments: Any, **named: Any) -> Any:
        expected = outcome(getattr(reference, kernel), *arguments, **named)
        assert outcome(getattr(native, kernel), *arguments, **named) == expected
        return expected[0]

    return compare


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """One seed a test, from its name; pytest shows the name."""
    return np.random.default_rng([20260916, *request.node.name.encode()])
