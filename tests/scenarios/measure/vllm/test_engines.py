"""The parent's side of an engine, with a stand-in for the engine: answers, faults, silence, pauses, the end."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsweep.scenarios.measure.vllm.engines import Child, EngineFailed
from kvsweep.scenarios.measure.vllm.job import Batch, Engine

# Answers as scripts/vllm_child.py does; what it does with a batch is in the batch's number of tokens.
STAND_IN = """
import os, sys, threading
from pathlib import Path
import msgspec
from kvsweep.scenarios.measure.vllm.job import Answer, Batch, Engine, Fault, Ran

folder = Path(sys.argv[1])
for number, line in enumerate(sys.stdin):
    fault = ran = None
    if number == 0:
        engine = msgspec.json.decode(line, type=Engine)
        if engine.model == "broken":
            fault = Fault(where="start", type="ValueError", message="no such model")
    else:
        batch = msgspec.json.decode(line, type=Batch)
        if batch.tokens == 13:
            print("a last report", flush=True)
            os._exit(3)
        if batch.tokens == 14:
            threading.Event().wait()
        ran = Ran(outputs=[], ended=[str(os.getpid())], preemptions=batch.tokens, free_before=1, free_after=1,
                  steps=[], seconds=0.0, idle_steps=0)
    written = folder / f"{number}.writing"
    written.write_bytes(msgspec.json.encode(Answer(ran=ran, fault=fault, seconds=1.5)))
    written.rename(folder / f"{number}.json")
"""
ENGINE = Engine(name="one", model="m")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return path


@pytest.fixture
def child(script: Path, tmp_path: Path) -> Iterator[Child]:
    with Child(Path(sys.executable), script, ENGINE, tmp_path / "one", start_s=60) as one:
        yield one


def batch(tokens: int) -> Batch:
    return Batch(prompts=[[1]], tokens=tokens)


def test_each_batch_gets_its_own_answer_and_the_end_is_clean(child: Child) -> None:
    assert child.start_seconds == 1.5
    assert [child.run(batch(number), 60).preemptions for number in (5, 6)] == [5, 6]
    assert child.finish(60) == 0


def test_a_paused_engine_goes_on_when_it_is_asked(child: Child) -> None:
    child.pause()
    child.pause()
    state = Path(f"/proc/{child.run(batch(1), 60).ended[0]}/stat")
    child.pause()
    # A signal takes a moment; an engine that runs on shows no T, however often one looks.
    assert any(state.read_text().split()[2] == "T" for _ in range(100_000))
    assert child.run(batch(2), 60).preemptions == 2
    child.pause()
    assert child.finish(60) == 0


def test_an_engine_that_does_not_start_says_why(script: Path, tmp_path: Path) -> None:
    broken = Engine(name="two", model="broken")
    with pytest.raises(EngineFailed, match=r"^two: start: ValueError: no such model$"):
        Child(Path(sys.executable), script, broken, tmp_path / "two", start_s=60)


def test_an_engine_that_dies_leaves_its_last_words(child: Child) -> None:
    with pytest.raises(EngineFailed, match=r"^one: batch: ProcessEnded: exit code 3\na last report$"):
        child.run(batch(13), 60)


def test_an_engine_that_is_silent_is_given_up(child: Child) -> None:
    with pytest.raises(EngineFailed, match=r"^one: batch: TimeoutExpired: no answer within 0.3 s"):
        child.run(batch(14), 0.3)


def test_an_answer_of_an_earlier_engine_is_never_taken(script: Path, tmp_path: Path) -> None:
    (tmp_path / "three").mkdir()
    with pytest.raises(FileExistsError):
        Child(Path(sys.executable), script, ENGINE, tmp_path / "three", start_s=60)
