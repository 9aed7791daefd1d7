"""Writers that are killed at random moments: nothing acknowledged is lost, nothing torn is read, cuts are noticed."""

import json
import subprocess
import sys

import pytest

from kvsweep.scenarios.verify.crash import WAYS, batches, expected

SEED = 20260916


@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=pytest.mark.full)])
def test_a_killed_writer_loses_nothing_that_it_acknowledged_and_leaves_nothing_torn(kills: int) -> None:
    """In a process of its own, which forks: a writer that is killed may not take this one's files along."""
    command = ["-m", "kvsweep.scenarios.verify.crash", "--kills", str(kills), "--seed", str(SEED), "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    again = f"python {' '.join(command)}: {found['first_failure']}"
    assert done.returncode == 0, again
    assert (found["kills"], found["lost"], found["torn"], found["refused"], found["wrong"]) == (kills, 0, 0, 0, 0), (
        again
    )
    # The run did what it is for: commits under way, damage that was seen, ledgers of several files.
    assert found["acknowledged"] > 20 * kills
    assert found["cuts"] >= kills - 3
    assert found["noticed"] > 0
    assert found["repaired"] > 0
    assert found["files"] > 1


def test_every_level_is_killed_with_every_writer() -> None:
    assert len(WAYS) == 4
    assert {SEED % 4 + number % 4 for number in range(30)} >= {0, 1, 2, 3}


def test_a_seed_gives_the_same_batches_and_their_ends() -> None:
    first, second = batches(5), batches(5)
    lengths = []
    for _ in range(50):
        batch = next(first)
        assert next(second) == batch
        lengths.append(len(batch))
    written, ends = expected(5, sum(lengths[:20]))
    assert (len(written), sorted(ends)[:3]) == (sum(lengths[:20]), [0, lengths[0], lengths[0] + lengths[1]])
    assert max(ends) == len(written)
