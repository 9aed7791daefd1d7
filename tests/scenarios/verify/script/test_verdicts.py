"""A run that must fail does fail: a wrong expectation, a fault that nothing honest does, and code broken on purpose."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from kvsweep.ledger import acks
from kvsweep.runtime.core import reports
from kvsweep.runtime.core.steps import OpenSteps
from kvsweep.scenarios.verify.script import steps as s
from kvsweep.scenarios.verify.script.expectations import LAW_NAMES
from kvsweep.scenarios.verify.script.faults import Fault
from kvsweep.scenarios.verify.script.format import Script
from kvsweep.scenarios.verify.script.load import LIBRARY, load_script, parse
from kvsweep.scenarios.verify.script.run import Verdict, run_script
from kvsweep.transports.producer import HostProducer

HEAD = 'title = "x"\n[[step]]\ndo = "open"\nblocks = 4\nregistered = true\n'
UPLOAD = '[[step]]\ndo = "upload"\nwant = [0, 1]\n'


def broken(text: str) -> list[str]:
    verdict = run_script(parse(HEAD + text))
    assert not verdict.passed
    return verdict.broken


def shipped(name: str) -> Script:
    return load_script(LIBRARY / f"{name}.toml")


def laws_of(verdict: Verdict) -> set[str]:
    """Names of the laws that a run broke, each known by name."""
    named = {line.partition(" (turn ")[0] for line in verdict.broken}
    assert named <= set(LAW_NAMES)
    return named


# ---- expectations


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[[step]]\ndo = "upload"\nwant = [9]\n',
            "$.step[1] (upload): refused: RequestKey(request_id='a', request_epoch=1): Select is illegal in "
            "running/idle/idle/idle; legal here: nothing (logical_blocks_by_layer[0]: expected blocks in [0, 4), "
            "got [9])",
        ),
        (
            f'{UPLOAD}refused = "no_row"\n',
            "$.step[1] (upload): expected to be refused ('no_row'), and it was not",
        ),
        (
            '[[step]]\ndo = "upload"\nwant = [8]\nwhole = 9\nrefused = "no_row"\n',
            "$.step[1] (upload): refused: expected 'no_row' in the reason, got",
        ),
        (
            f'{UPLOAD}aborted = "x"\n[[fault]]\ndo = "fail"\non = {{ message = "transfer" }}\n',
            "$.step[1] (upload): aborted: expected 'x' in the reason, got",
        ),
        (
            f"{UPLOAD}[expect]\nevents = {{ residency_committed = 2 }}\n",
            "$.expect.events.residency_committed: expected 2, got 1",
        ),
        (f"{UPLOAD}[expect]\nverdicts = {{ stale = 1 }}\n", "$.expect.verdicts.stale: expected 1, got 0"),
        (f"{UPLOAD}[expect]\nfinal = {{ h2d_bytes = 1 }}\n", "$.expect.final.h2d_bytes: expected 1, got 512"),
        (
            f'{UPLOAD}[[fault]]\ndo = "drop"\non = {{ message = "done", occurrence = 9 }}\n',
            "$.fault[0]: what it addresses never came",
        ),
        (
            f'{UPLOAD}[[fault]]\ndo = "delay"\non = {{ message = "heard" }}\nuntil = {{ event = "rank_lost" }}\n',
            "$.fault[0].until: rank_lost, occurrence 1, never came",
        ),
        (
            f'{UPLOAD}name = "u"\n[[step]]\ndo = "say"\nof = "u"\nverdict = "future"\n',
            "$.step[2] (say): refused: expected the verdict future, got duplicate",
        ),
    ],
)
def test_what_is_not_as_written_is_said_with_its_path(text: str, line: str) -> None:
    said = [one.partition("): ")[2] for one in broken(text)]
    assert any(one.startswith(line) for one in said), said


def test_what_is_not_reached_is_missing() -> None:
    verdict = run_script(parse(f'{HEAD}{UPLOAD}[expect]\nsometimes = ["pack", "no space"]\n'))
    assert (verdict.passed, verdict.broken, verdict.missing) == (False, [], ["pack", "no space"])


def test_a_wait_for_what_never_comes_ends_and_names_it() -> None:
    (line,) = broken('[[step]]\ndo = "wait"\nuntil = { event = "rank_lost" }\n')
    assert line.startswith("nothing stands still (turn ")
    assert "rank_lost, occurrence 1, does not come; nothing is pending" in line


# ---- a fault that nothing honest does


def test_b4_a_table_replaced_under_its_reader_is_seen() -> None:
    text = (
        f'{UPLOAD}[[step]]\ndo = "begin_step"\ncaptured = CAPTURED\n[[step]]\ndo = "upload"\nwant = [0, 1, 2]\n'
        '[[step]]\ndo = "end_step"\n[[fault]]\ndo = "replace_table"\nrank = 1\n'
        'after = { event = "transfer_started", occurrence = 2 }\n'
    )
    for captured in ("true", "false"):
        lines = broken(text.replace("CAPTURED", captured))
        assert any("step step reads a, generation 1, rank 1, layer 0: wrong bytes" in line for line in lines), lines


# ---- code that is broken on purpose


@pytest.fixture
def reader_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced view is retired under its readers."""
    monkeypatch.setattr(OpenSteps, "reads", lambda self, request, generation: False)


@pytest.mark.usefixtures("reader_ignored")
@pytest.mark.parametrize(
    "name", ["steps_dispatched_ahead", "every_layer_empty", "tables_replaced_under_a_captured_step"]
)
def test_g2_a_view_that_is_retired_under_its_readers_breaks_a_law(name: str) -> None:
    assert laws_of(run_script(shipped(name))) & {"bytes", "ownership"}


def test_f1_ranks_that_are_counted_break_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second report of one rank is taken for the report of another."""
    honest = acks.judge

    def counting(state: Any, ack: acks.Ack) -> acks.Verdict:
        verdict = honest(state, ack)
        if verdict.kind != "duplicate":
            return verdict
        other = replace(ack, rank=1 - ack.rank)
        return honest(state, other)

    monkeypatch.setattr(reports, "judge", counting)
    assert not run_script(shipped("one_report_twice")).passed


def test_d8_sources_that_are_lost_before_the_copy_break_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that writes one token into the wrong block."""
    honest = HostProducer.write_rows

    def shifted(self: HostProducer, layer: int, source: int, first: int, k: Any, v: Any) -> None:
        honest(self, layer, source, first, k + (layer == 1), v)

    monkeypatch.setattr(HostProducer, "write_rows", shifted)
    assert "bytes" in laws_of(run_script(shipped("one_rank_late")))


def test_an_error_that_is_none_of_ours_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(reports, "done", fails)
    (line, *_) = run_script(shipped("one_rank_late")).broken
    assert line.startswith("no error but ours (turn ")
    assert line.endswith("ZeroDivisionError in fails: planted")


# ---- free steps


def test_free_steps_are_not_judged_and_laws_are() -> None:
    text = f'{UPLOAD}refused = "never"\n[[step]]\ndo = "wait"\nuntil = {{ event = "rank_lost" }}\n'
    text += '[expect]\nsteps = "free"\n'
    assert run_script(parse(HEAD + text)).passed


def test_every_kind_of_step_and_fault_ships() -> None:
    """What no scenario uses is either untested or not needed."""
    scripts = [load_script(path) for path in sorted(LIBRARY.glob("*.toml"))]
    used = {type(step).__name__ for script in scripts for step in script.step}
    faults = {type(fault).__name__ for script in scripts for fault in script.fault}
    assert used == {kind.__name__ for kind in get_args(s.Step)}
    assert faults | {"ReplaceTable"} == {kind.__name__ for kind in get_args(Fault)}
