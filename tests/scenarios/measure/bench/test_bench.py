"""`kvsweep bench`: every benchmark runs, checks its kernel first, and says what it measured."""

import json
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from kvsweep.kernels.table import why_not_native

if why_not_native() is not None:
    pytest.skip("the native kernels are not built", allow_module_level=True)

from kvsweep.cli.main import app
from kvsweep.kernels.compiled import NativeKernels
from kvsweep.scenarios.measure.bench.measure import Row, aligned, peak_bytes, race, rows_of
from kvsweep.scenarios.measure.bench.run import Name, cases, run_bench

NAMES: tuple[str, ...] = get_args(Name)


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_runs_and_its_figures_agree_with_each_other(name: Any) -> None:
    """J2: a ratio is a quotient of two figures of the same row, and a limit is one of the three beside it."""
    report = run_bench(name, rounds=1, quick=True)
    assert report.machine["isa"] == NativeKernels().isa
    assert {row.path for row in report.rows}
    for row in report.rows:
        assert row.ratio == pytest.approx(row.peer_ms / row.ours_ms)
        assert row.of_limit == pytest.approx(row.limit_ms / row.ours_ms)
        assert row.limit_ms == {"stream copy": row.stream_copy_ms, "one read": row.read_ms}[row.limit]
        assert min(row.ours_ms, row.peer_ms, row.memcpy_ms, row.stream_copy_ms, row.read_ms) > 0


def test_json_has_the_stable_keys_of_a_row() -> None:
    done = CliRunner().invoke(app, ["bench", "retain", "--quick", "--rounds", "1", "--clock", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report.keys() == {"machine", "rows"}
    assert report["machine"]["clock"] == "cpu"
    stable = {"path", "size", "ours_ms", "peer", "peer_ms", "ratio", "limit", "of_limit"}
    assert all(stable <= row.keys() == set(Row.__struct_fields__) for row in report["rows"])


def test_cpu_time_of_several_threads_is_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "retain", "--quick", "--threads", "2", "--clock", "cpu"])
    assert done.exit_code == 2
    assert "clock: expected wall where several threads share the work, got cpu" in done.stderr


def test_a_kernel_that_gives_something_else_is_not_measured() -> None:
    case = next(cases("retain", NativeKernels(), quick=True))
    with pytest.raises(AssertionError, match="another result than the reference"):
        next(rows_of(replace(case, check=lambda: False), rounds=1, isa=0))


def test_the_minimum_of_the_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by what each call says: 5, 3 and 4 seconds in three rounds."""
    from kvsweep.scenarios.measure.bench import measure

    now, takes = [0.0], iter([9.0, 5.0, 3.0, 4.0])

    def call() -> None:
        now[0] += next(takes)

    monkeypatch.setitem(measure.CLOCKS, "wall", lambda: now[0])
    assert race({"one": call}, rounds=3) == {"one": 3.0}


def test_peak_memory_counts_what_a_call_allocates() -> None:
    size = 64 << 20
    peak = peak_bytes(lambda: np.ones(size, dtype=np.uint8))
    if peak is None:
        pytest.skip("this system does not let the high-water mark be reset")
    assert size * 0.9 < peak < size * 1.5


def test_measured_memory_is_aligned_for_streaming() -> None:
    array = aligned((3, 64), np.float32)
    assert array.ctypes.data % 64 == 0
    assert array.shape == (3, 64)
    assert array.dtype == np.float32
