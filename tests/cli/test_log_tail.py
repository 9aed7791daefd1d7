"""`kvsweep log tail -f` in a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.ledger.small_run import small_run

from kvsweep.ledger.store.open import open_log


def test_tail_follows_another_process_until_it_is_interrupted(tmp_path: Path) -> None:
    written = small_run()
    path = tmp_path / "live.db"
    log = open_log(f"sqlite:{path}")
    log.append(written.events[:4])
    # Tests that run in the background of a shell are told to ignore interrupts, and so are their children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    heed += "; from kvsweep.cli.log import log_app; log_app()"
    command = [sys.executable, "-c", heed, "tail", str(path), "-f", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None and follower.stderr is not None  # noqa: PT018
            assert json.loads(follower.stdout.readline())["position"] == 4
            log.append(written.events[4:6])
            assert [json.loads(follower.stdout.readline())["position"] for _ in range(2)] == [5, 6]
            follower.send_signal(signal.SIGINT)
            assert follower.wait(timeout=60) == 0
            assert follower.stderr.read() == ""
        finally:
            follower.kill()
    log.close()
