"""`demo --ack-fd`: no position that it has named is missing from the ledger, whenever the process is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvsweep.cli.demo import command_line
from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.ledger.store.open import open_log
from kvsweep.scenarios.demo.options import DemoOptions, check_options
from kvsweep.scenarios.demo.run import AckPipe

SEED = 20261130
SMALL = (
    "demo --quick --synthetic --prompt-tokens 128 --tokens 12 --every 4 --requests 2 --ranks 2 --json "
    "--writer {writer} --ledger {ledger} --ack-fd {fd}"
)
# One process has imported everything and forks a demo for each line: only what is killed has to start again.
NURSERY = """
import os, sys
import torch
import kvsweep.scenarios.demo.run
from kvsweep.cli.main import main
torch.set_num_threads(1)
for line in sys.stdin:
    acks, command = line.split(" ", 1)
    child = os.fork()
    if not child:
        fd = os.open(acks, os.O_WRONLY)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["kvsweep", *command.format(fd=fd).split()]
        try:
            main()
        except SystemExit as ended:
            os._exit(ended.code or 0)
        os._exit(70)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Starts demos and kills them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, writer: str, kill_at: int | None) -> tuple[Path, list[int], int]:
        """(ledger, acknowledged positions, exit code). Killed when position `kill_at` is heard; None: never."""
        self._runs += 1
        ledger, fifo = self._folder / f"{self._runs}.ledger", self._folder / f"{self._runs}.acks"
        os.mkfifo(fifo)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = SMALL.replace("{writer}", writer).replace("{ledger}", str(ledger))
        self._process.stdin.write(f"{fifo} {command}\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        heard: list[int] = []
        with fifo.open() as acks:
            for line in acks:
                if line.endswith("\n"):  # the kill may cut the last one
                    heard.append(int(line))
                if heard and heard[-1] == kill_at:
                    os.kill(child, signal.SIGKILL)
        return ledger, heard, int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


def kill_and_look(nursery: Nursery, moments: int) -> None:
    whole, heard, code = nursery.run("thread", None)
    assert code == 0
    total = len(heard)
    assert heard == list(range(1, total + 1))
    with Ledger.open(f"sqlite:{whole}") as ledger:
        assert len(list(ledger.events())) == total
    rng = np.random.default_rng(SEED)
    print(f"seed {SEED}, {total} positions")  # noqa: T201 - shown where it fails
    killed = 0
    for number in range(moments):
        writer, moment = ("thread", "inline")[number % 2], int(rng.integers(1, total))
        path, heard, code = nursery.run(writer, moment)
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)  # 0: it was done before the signal came
        assert heard == list(range(1, len(heard) + 1))
        assert len(heard) >= moment
        with Ledger.open(f"sqlite:{path}") as ledger:
            found = [record.position for record in ledger.events()]
            verified = ledger.verify()
        assert set(heard) <= set(found), f"{writer}, killed at {moment}: {sorted(set(heard) - set(found))} are missing"
        assert verified.ok, f"{writer}, killed at {moment}: {verified}"
        log = open_log(f"sqlite:{path}")  # the lock has gone with its process, and a new writer goes on
        assert log.durable() == len(found)
        log.close()
    assert killed >= moments // 2, "the demo was over before it could be killed"


def test_a_kill_at_6_random_moments_loses_no_acknowledged_position(nursery: Nursery) -> None:
    kill_and_look(nursery, 6)


@pytest.mark.full
def test_a_kill_at_50_random_moments_loses_no_acknowledged_position(nursery: Nursery) -> None:
    kill_and_look(nursery, 50)


# ---- the descriptor


def test_each_position_is_a_line_once() -> None:
    read, write = os.pipe()
    pipe = AckPipe(write)
    for durable in (1, 1, 4, 9):
        pipe(durable)
    pipe.check()
    os.close(write)
    with os.fdopen(read) as lines:
        assert lines.read() == "1\n2\n3\n4\n5\n6\n7\n8\n9\n"


def test_a_descriptor_that_is_not_open_is_refused_at_once() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    for descriptor in (write, 2**40):
        with pytest.raises(SettingsError, match=rf"ack-fd: expected an open file descriptor, got {descriptor}"):
            AckPipe(descriptor)


def test_a_reader_that_has_left_stops_no_run_and_is_reported_at_its_end() -> None:
    read, write = os.pipe()
    pipe = AckPipe(write)
    pipe(1)
    os.close(read)
    pipe(2)
    pipe(3)
    os.close(write)
    with pytest.raises(SettingsError, match=r"ack-fd: expected .* every acknowledged position, got .*Broken pipe"):
        pipe.check()


def test_where_the_output_goes_is_no_evidence() -> None:
    assert command_line(["demo", "--ack-fd", "3", "--quick", "--ack-fd=4"]) == ["kvsweep", "demo", "--quick"]


def test_j1_a_storm_repeats_exactly_so_it_takes_no_writer_thread() -> None:
    with pytest.raises(SettingsError, match="writer: expected inline with --chaos, got thread"):
        check_options(DemoOptions(chaos=1, writer="thread"))
