"""Kernel errors: one sentence with the argument, what was expected and what came."""

import pickle

from kvsweep.kernels.errors import KernelArgumentError, NonFiniteInput


def test_message_names_argument_expected_and_got() -> None:
    error = KernelArgumentError("k", "an integer in [0, 4]", "9")
    assert str(error) == "k: expected an integer in [0, 4], got 9"
    assert (error.argument, error.expected, error.got) == ("k", "an integer in [0, 4]", "9")
    assert isinstance(error, ValueError)


def test_non_finite_names_row_and_column() -> None:
    error = NonFiniteInput("scores", 2, 5, float("nan"))
    assert str(error) == "scores[2, 5]: expected a finite number, got nan"
    assert (error.row, error.column) == (2, 5)
    assert isinstance(error, KernelArgumentError)


def test_errors_survive_pickling() -> None:
    for error in (KernelArgumentError("a", "b", "c"), NonFiniteInput("scores", 1, 2, float("inf"))):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
