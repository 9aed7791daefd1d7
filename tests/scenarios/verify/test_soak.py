"""Many requests and rounds without a model: nothing that is kept grows with the rounds."""

import pytest
from tests.cli.command_line import Command, command_of

SIZES = {
    "requests",
    "closed requests",
    "holders",
    "owned blocks",
    "views of one request",
    "tail of one request",
    "settling operations",
    "fences",
    "idempotency keys of one request",
    "open steps",
    "reports a rank remembers",
    "items in device queues",
    "awaited operations",
    "frames to ranks",
    "threads",
}


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def test_b6_g3_a_short_soak_reports_every_size_and_none_has_grown(kvsweep_command: Command) -> None:
    """B6, G3: requests open, retain, end and begin again over two ranks; what they held has come back."""
    answer = kvsweep_command("soak", "--requests", 8, "--rounds", 60, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert found["grown"] == []
    assert (found["requests"], found["seed"]) == (8, 20260916)
    assert found["rounds"] >= 60
    assert found["lives"] > 8
    assert found["sizes"].keys() == SIZES
    assert found["sizes"]["requests"] == [8, 8]
    assert found["sizes"]["views of one request"][1] <= 3


@pytest.mark.full
def test_b6_g3_two_hundred_and_fifty_six_requests_stay_flat_over_ten_thousand_rounds(kvsweep_command: Command) -> None:
    """B6, G3: tables, queues, histories, threads."""
    answer = kvsweep_command("soak", "--requests", 256, "--rounds", 10_000, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert (found["grown"], found["rounds"] >= 10_000) == ([], True)
    assert found["lives"] > 256
    early, late = found["sizes"]["threads"]
    assert late <= early


def test_a_size_that_grows_ends_with_exit_code_1(kvsweep_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that nobody trims: one more for every sample."""
    from kvsweep.scenarios.verify.soak import Soak

    real, kept = Soak._sample, list[int]()

    def sample(self: Soak) -> None:
        real(self)
        kept.extend(range(10))
        self.sizes.add("a history", len(kept))

    monkeypatch.setattr(Soak, "_sample", sample)
    answer = kvsweep_command("soak", "--requests", 2, "--rounds", 24, "--json")
    assert answer.code == 1
    assert answer.err == "kvsweep: these have grown: a history\n"
    assert answer.json["grown"] == ["a history"]
