"""The whole path on the CUDA device over the simulated driver: the host device's tokens, bytes and digest."""

import shutil
from pathlib import Path

import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.cli.demo import ours_of
from kvsweep.kernels.cuda.nvidia import why_no_device
from kvsweep.kernels.cuda.simulated import Failure, SimulatedDriver
from kvsweep.scenarios.demo.devices import cuda_devices, describe_driver, host_device
from kvsweep.scenarios.demo.run import DemoOptions, DemoResult, run_demo
from kvsweep.transports.cuda.paths import PathWish
from kvsweep.transports.device import DeviceLost

no_compiler = shutil.which("c++") is None and shutil.which("g++") is None
SETTLED_TURNS = 300
"""Turns after each step in which either device ends what it was given, so that the order of events is the same."""


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


@pytest.mark.skipif(no_compiler, reason="no C++ compiler for the simulated driver")
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("pull", {"retain": "move"}),
        pytest.param("batch", {}, marks=pytest.mark.full),
        pytest.param("staged", {}, marks=pytest.mark.full),
    ],
)
def test_c2_a_demo_on_cuda_gives_the_digest_of_the_host_device(
    tmp_path: Path, path: PathWish, more: dict[str, object]
) -> None:
    """Uploads, moves, stores and remaps by the kernels' own source, late and out of order between streams."""
    driver = SimulatedDriver(seed=20260916)

    def run(name: str) -> DemoResult:
        options = DemoOptions(synthetic=True, prompt_tokens=128, block_size=8, every=4, tokens=24, **more)  # type: ignore[arg-type]
        makers = {"host": (host_device, ""), "cuda": (cuda_devices(driver, path), describe_driver(driver))}
        return run_demo(
            options,
            ledger=f"sqlite:{tmp_path / name}.ledger",
            command=[],
            device=makers[name],
            turns_per_step=SETTLED_TURNS,
        )

    host, cuda = run("host"), run("cuda")
    assert (cuda.lossless, host.lossless) == (True, True)
    assert cuda.tokens == host.tokens
    assert cuda.counted == host.counted
    assert cuda.digest == host.digest
    assert min(cuda.counted["h2d_bytes"], cuda.counted["d2h_bytes"]) > 0
    assert driver.launches["write_tables"] > 0
    assert "cuda device (simulated" in cuda.kernels
    assert "cuda" not in host.kernels
    assert "GPU transfer" in cuda.not_run  # the driver is a simulation
    assert cuda.held_at_end == dict.fromkeys(cuda.held_at_end, 0)


@pytest.mark.skipif(no_compiler, reason="no C++ compiler for the simulated driver")
def test_g3_a_storm_over_the_cuda_device_loses_nothing(tmp_path: Path) -> None:
    """Failed and held operations and a rank that restarts: its device memory is gone, and another begins."""
    driver = SimulatedDriver(seed=20260916)
    options = DemoOptions(synthetic=True, prompt_tokens=128, block_size=8, every=4, tokens=48, ranks=2, chaos=3)
    device = cuda_devices(driver, "pull"), "simulated"
    result = run_demo(options, ledger=f"sqlite:{tmp_path / 'storm'}.ledger", command=[], device=device)
    assert result.lossless
    assert result.storm["rank restarts"] == 1
    assert result.held_at_end == dict.fromkeys(result.held_at_end, 0)


@pytest.mark.skipif(no_compiler, reason="no C++ compiler for the simulated driver")
def test_a_device_that_is_lost_ends_the_run_with_its_name(tmp_path: Path) -> None:
    """Not a wait for reports that will never come, nor a report that nobody can vouch for."""
    driver = SimulatedDriver(seed=20260916)
    driver.failures["done"] = Failure(lost=True, after=5)
    options = DemoOptions(synthetic=True, prompt_tokens=64, block_size=8, every=4, tokens=8)
    device = cuda_devices(driver, "pull"), "simulated"
    with pytest.raises(ExceptionGroup) as caught:
        run_demo(options, ledger=f"sqlite:{tmp_path / 'lost'}.ledger", command=[], device=device)
    error = ours_of(caught.value)
    assert isinstance(error, DeviceLost)
    assert str(error) == "device lost: done: the device was lost"


@pytest.mark.skipif(why_no_device() is None, reason="a GPU is here")
def test_j2_without_a_gpu_the_device_is_refused_in_one_sentence(kvsweep_command: Command, tmp_path: Path) -> None:
    ledger = tmp_path / "none.ledger"
    answer = kvsweep_command("demo", "--synthetic", "--device", "cuda", "--ledger", str(ledger))
    assert answer.code != 0
    assert answer.err == f'kvsweep: device: expected "host" on this machine, got "cuda": {why_no_device()}\n'
    assert not ledger.exists()
