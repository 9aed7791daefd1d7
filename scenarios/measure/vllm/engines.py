"""Engines in child processes: vLLM's interpreter runs `scripts/vllm_child.py`, one process for each engine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from kvsweep.scenarios.measure.vllm.job import Answer, Batch, Engine, Fault, Ran

LOOK = 0.1  # seconds between two looks for an answer
LAST_LINES = 12  # of a child's own output, when it ends without an answer


class EngineFailed(RuntimeError):
    """The engine did not start, a batch ended in an exception, or the process ended; `fault` says which."""

    def __init__(self, engine: str, fault: Fault) -> None:
        super().__init__(f"{engine}: {fault.where}: {fault.type}: {fault.message}")
        self.fault = fault


class Child:
    """One engine in a process group of its own. Leaving the context ends the group."""

    def __init__(
        self, python: Path, script: Path, engine: Engine, folder: Path, *, paths: Sequence[Path] = (), start_s: float
    ) -> None:
        """Start the engine and wait until it stands.

        `folder` gets the answers and the child's own output; `paths` go on its PYTHONPATH; `start_s` is in seconds.
        Raises EngineFailed, and FileExistsError where `folder` is there already.
        """
        folder.mkdir(parents=True)  # a new one: an answer that lies there already would be taken for this engine's
        self.engine, self.folder, self._asked, self._stopped = engine, folder, 0, False
        self._log = (folder / "output.txt").open("wb")
        settings = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # A rank a core; with more ranks than cores the kernel's scheduler shares them out.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind" if engine.ranks > 1 else "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(engine.multiprocess)),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._process = subprocess.Popen(
            ["env", *(f"{name}={value}" for name, value in settings.items()), str(python), str(script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self.start_seconds = self._ask(msgspec.json.encode(engine), start_s).seconds
        except EngineFailed:
            self.close()
            raise

    def run(self, batch: Batch, timeout_s: float) -> Ran:
        """Run a batch to its end. Raises EngineFailed, also when it takes longer than `timeout_s` seconds."""
        answer = self._ask(msgspec.json.encode(batch), timeout_s)
        if answer.ran is None:
            raise EngineFailed(self.engine.name, Fault(where="batch", type="NoAnswer", message="an empty answer"))
        return answer.ran

    def pause(self) -> None:
        """Stop every process of the engine where it is, so that it takes no time from another one."""
        if not self._stopped:
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._stopped = True

    def go_on(self) -> None:
        """Let a paused engine go on."""
        if self._stopped:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._stopped = False

    def finish(self, timeout_s: float) -> int:
        """Ask the engine to shut down by itself, wait for that, and return its exit code."""
        self.go_on()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            fault = Fault(where="batch", type="TimeoutExpired", message=f"no shutdown within {timeout_s:g} s")
            raise EngineFailed(self.engine.name, fault) from None
        finally:
            self.close()

    def close(self) -> None:
        """End whatever is left of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._log.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, line: bytes, timeout_s: float) -> Answer:
        self.go_on()
        path = self.folder / f"{self._asked}.json"
        self._asked += 1
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended: said below
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()
        waited = 0.0
        while not path.exists():
            try:
                code = self._process.wait(LOOK)
            except subprocess.TimeoutExpired:
                waited += LOOK
                if waited > timeout_s:
                    self._failed("TimeoutExpired", f"no answer within {timeout_s:g} s")
                continue
            if not path.exists():
                self._failed("ProcessEnded", f"exit code {code}")
        answer = msgspec.json.decode(path.read_bytes(), type=Answer)
        if answer.fault is not None:
            raise EngineFailed(self.engine.name, answer.fault)
        return answer

    def _failed(self, kind: str, message: str) -> None:
        lines = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        fault = Fault(where="start" if self._asked == 1 else "batch", type=kind, message="\n".join([message, *lines]))
        raise EngineFailed(self.engine.name, fault)
