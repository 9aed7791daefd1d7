"""The demo, whole: what it emits, what it reports and what its ledger says afterwards."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.command_line import Command, command_of

from kvsweep.kernels.table import why_not_native
from kvsweep.ledger.errors import SettingsError
from kvsweep.ledger.events import TransferSettled
from kvsweep.ledger.inspect.replay import Ledger
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.result import DemoResult
from kvsweep.scenarios.demo.run import run_demo

COPIED = ("h2d_bytes", "unpack_bytes", "metadata_bytes", "table_updates")
SYNTHETIC = DemoOptions(prompt_tokens=256, tokens=40, block_size=8, every=8, synthetic=True)
REAL = DemoOptions(prompt_tokens=128, tokens=8, block_size=8, every=2)
COMMAND_OPTIONS = "--synthetic --prompt-tokens 256 --tokens 24 --block-size 8 --every 8".split()

# What others read out of --json.
KEYS = {
    "tokens": dict,
    "lossless": bool,
    "accepted_per_verify": float,
    "rounds": int,
    "metrics": dict,
    "physical_blocks_released": int,
    "remap": dict,
    "owned_blocks_max": int,
    "vacant_areas": int,
    "ledger": str,
    "digest": str,
    "model": dict,
    "requests": int,
    "ranks": int,
    "shared_blocks": int,
    "preemptions": int,
    "refused": dict,
    "storm": dict,
    "held_at_end": dict,
    "free_at_end": list,
}
METRICS = (
    "cpu_gather_bytes cpu_destination_blocks h2d_bytes unpack_bytes resident_moved_bytes packed_bytes table_updates "
    "metadata_bytes plan_s wait_s"
).split()


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def demo(path: Path, options: DemoOptions, bundle: Bundle | None = None, **changed: Any) -> DemoResult:
    """One run whose ledger is at `path`; what every run has to satisfy is checked here."""
    options = replace(options, **changed)
    result = run_demo(options, ledger=f"sqlite:{path}", command=["kvsweep", "demo"], bundle=bundle)
    assert result.lossless
    assert [len(ids) for ids in result.tokens.values()] == [options.tokens] * options.requests
    assert result.free_at_end == result.device_blocks
    assert not any(result.held_at_end.values())
    expect_counted(result)
    assert result.metrics["packed_bytes"] <= result.metrics["resident_moved_bytes"]
    assert result.owned_blocks_max <= sum(result.device_blocks)
    return result


def expect_counted(result: DemoResult) -> None:
    """The memories saw what operations reported; of operations that were given up they saw more."""
    reported = {name: result.metrics[name] for name in result.counted}
    with Ledger.open(f"sqlite:{result.ledger}") as ledger:
        given_up = any(isinstance(record.event, TransferSettled) for record in ledger.events())
    if given_up:
        assert all(result.counted[name] >= count for name, count in reported.items())
    else:
        assert reported == result.counted


# ---- the synthetic model: full and sliding-window layers


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """The synthetic run with no option changed: greedy, a list a layer, remap, pack, source-only."""
    return demo(tmp_path_factory.mktemp("named") / "x", SYNTHETIC)


@pytest.mark.parametrize(
    "changed", [{"temperature": 0.9}, {"selection": "shared", "temperature": 0.9}, {"selection": "shared"}]
)
def test_output_equals_plain_decoding_token_for_token(
    named: DemoResult, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Greedy and sampled; the laws hold at the end and every block is back."""
    result = demo(tmp_path / "x", SYNTHETIC, **changed)
    assert result.rounds >= 4
    assert result.verifies < len(result.tokens["demo/0"])
    assert (result.tokens == named.tokens) == ("temperature" not in changed)


@pytest.mark.parametrize("ranks", [2, 3])
def test_requests_over_ranks_emit_what_each_would_alone(kvsweep_command: Command, tmp_path: Path, ranks: int) -> None:
    """Half of each prompt is shared and computed once; through the command line, with the keys that come with it."""
    small = "--synthetic --prompt-tokens 96 --tokens 12 --block-size 8 --every 4 --requests 3".split()
    answer = kvsweep_command("demo", *small, "--ranks", ranks, "--json", "--ledger", tmp_path / "x")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert found["lossless"]
    assert (found["requests"], found["ranks"]) == (3, ranks)
    assert {name: len(ids) for name, ids in found["tokens"].items()} == {f"demo/{index}": 12 for index in range(3)}
    assert found["shared_blocks"] == 2 * 6
    assert found["held_at_end"] == {"leases": 0, "fences": 0, "quarantine": 0, "shared": 0}
    assert found["free_at_end"] == found["device_blocks"]
    assert found["storm"] == {}
    assert not {"several ranks", "several requests"} & set(found["not_run"])


def test_more_ranks_than_kv_heads_are_refused_before_a_ledger_begins(kvsweep_command: Command, tmp_path: Path) -> None:
    sentence = kvsweep_command("demo", "--synthetic", "--ranks", 4, "--ledger", tmp_path / "x").expect_sentence(2)
    assert "ranks: expected 1 to 3, a KV head for each" in sentence
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("scorer", ["quest", "recency"])
def test_every_scorer_is_lossless(tmp_path: Path, scorer: str) -> None:
    assert demo(tmp_path / "x", SYNTHETIC, scorer=scorer).rounds >= 4


def test_bf16_runs_and_says_where_it_differs(tmp_path: Path) -> None:
    """No claim of equality is made: the verify has another shape than plain decoding, so low bits differ."""
    options = replace(SYNTHETIC, dtype="bf16")
    result = run_demo(options, ledger=f"sqlite:{tmp_path / 'x'}", command=["kvsweep", "demo"])
    assert result.model["dtype"] == "bf16"
    assert (result.first_difference is None) == result.lossless
    assert result.rounds >= 4


def test_sampling_depends_on_the_seed(tmp_path: Path) -> None:
    hot = [demo(tmp_path / f"hot-{seed}", SYNTHETIC, temperature=0.9, seed=seed).tokens for seed in (1, 2)]
    assert hot[0] != hot[1]


def test_j1_one_seed_gives_one_digest_and_another_seed_another(kvsweep_command: Command, tmp_path: Path) -> None:
    """J1: through the command line, with ledgers in different places; tokens agree too."""
    runs = [
        kvsweep_command("demo", *COMMAND_OPTIONS, "--seed", seed, "--json", "--ledger", tmp_path / name)
        for seed, name in ((7, "a"), (7, "other.ledger"), (8, "c"))
    ]
    assert [(run.code, run.err) for run in runs] == [(0, "")] * 3
    first, again, other = (run.json for run in runs)
    assert first["digest"] == again["digest"] != other["digest"]
    assert first["tokens"] == again["tokens"]
    assert first["events"] == again["events"]


def test_json_has_the_keys_that_others_rely_on(kvsweep_command: Command, tmp_path: Path) -> None:
    answer = kvsweep_command("demo", *COMMAND_OPTIONS, "--json", "--ledger", tmp_path / "x")
    found = answer.json
    assert {name: type(found[name]) for name in KEYS} == KEYS
    assert set(METRICS) <= found["metrics"].keys()
    assert found["remap"].keys() == {"shared", "layer", "move", "pack"}
    assert found["ledger"] == str(tmp_path / "x")
    assert found["tokens"].keys() == {"demo/0"}
    assert all(isinstance(token, int) for token in found["tokens"]["demo/0"])
    assert found["model"]["sha256"] is None
    assert "GPU transfer" in found["not_run"]
    assert ("native extension" in found["not_run"]) == (found["kernels"] == "numpy")


def test_replay_verify_in_a_fresh_process_gives_the_digest_of_the_run(named: DemoResult) -> None:
    code = "from kvsweep.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "log", "replay", named.ledger, "--verify", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert msgspec.json.decode(done.stdout) == {
        "events": named.events,
        "digest": named.digest,
        "recorded_digest": named.digest,
        "ok": True,
        "since": 0,
    }


def test_a2_a3_every_cost_is_there_by_itself_where_the_cpu_gathers_nothing(named: DemoResult) -> None:
    """A2, A3: CPU gather and destinations are 0; transfers, unpacking, tables and metadata are not."""
    metrics = named.metrics
    assert (metrics["cpu_gather_bytes"], metrics["cpu_destination_blocks"]) == (0, 0)
    assert all(metrics[name] > 0 for name in (*COPIED, "plan_s", "wait_s", "d2h_bytes"))


def test_a2_copying_is_counted_apart_from_what_it_feeds(named: DemoResult, tmp_path: Path) -> None:
    """A2: the producer's own count agrees; the host-to-device bytes are those of a source-only run, not a sum."""
    copied = demo(tmp_path / "copied", SYNTHETIC, source="copy")
    assert copied.metrics["cpu_gather_bytes"] == copied.metrics["h2d_bytes"] == named.metrics["h2d_bytes"] > 0
    assert copied.metrics["cpu_destination_blocks"] > 0
    assert copied.tokens == named.tokens


def test_b7_bytes_moved_and_blocks_released_are_two_figures(tmp_path: Path) -> None:
    """B7: remap without pack moves nothing and releases blocks; a byte move moves more and does not release more."""
    remap = demo(tmp_path / "remap", SYNTHETIC, pack="never")
    move = demo(tmp_path / "move", SYNTHETIC, retain="move")
    assert remap.metrics["resident_moved_bytes"] == 0 < remap.physical_blocks_released
    assert move.metrics["resident_moved_bytes"] > 0 < move.physical_blocks_released
    assert move.remap["move"] > 0 == remap.remap["move"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"block_size": 0}, "block-size"),
        ({"budget": 0.0}, "budget"),
        ({"every": 0}, "every"),
        ({"rounds": 0}, "rounds"),
        ({"hysteresis": float("nan")}, "hysteresis"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"tokens": 0}, "tokens"),
        ({"prompt_tokens": 10**6}, "prompt-tokens"),
    ],
)
def test_bad_options_are_refused_by_name_before_a_ledger_begins(
    tmp_path: Path, changed: dict[str, Any], name: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: expected ") as error:
        run_demo(replace(SYNTHETIC, **changed), ledger=f"sqlite:{tmp_path / 'x'}", command=["kvsweep", "demo"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


# ---- the real model


@pytest.fixture(scope="module")
def real(smollm2: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoResult]:
    """The same short run of SmolLM2-135M in several ways; each is lossless and its counters agree."""
    folder = tmp_path_factory.mktemp("real")
    ways: dict[str, dict[str, Any]] = {
        "never": {"pack": "never"},
        "auto": {},
        "shared": {"selection": "shared"},
        "move": {"retain": "move", "tokens": 12, "every": 3},  # the first rounds adopt one list for all layers
    }
    return {name: demo(folder / name, REAL, smollm2, **changed) for name, changed in ways.items()}


def test_b1_layers_that_never_agree_are_remapped_one_by_one_without_a_byte(real: dict[str, DemoResult]) -> None:
    """B1, B3: --selection layer --retain remap --pack never."""
    found = real["never"]
    assert found.remap == {"shared": 0, "layer": found.rounds, "move": 0, "pack": 0}
    assert found.metrics["resident_moved_bytes"] == 0


def test_b7_with_pack_only_what_pack_moved_is_moved(real: dict[str, DemoResult]) -> None:
    found = real["auto"]
    assert found.remap["shared"] == found.remap["move"] == 0
    assert found.remap["pack"] >= 1
    assert found.metrics["resident_moved_bytes"] == found.metrics["packed_bytes"] > 0
    assert found.owned_blocks <= real["never"].owned_blocks
    assert found.vacant_areas < real["never"].vacant_areas


def test_b1_b2_a_shared_selection_is_remapped_shared_without_a_byte(real: dict[str, DemoResult]) -> None:
    found = real["shared"]
    assert found.remap["shared"] > 0
    assert found.remap["move"] == 0
    assert found.metrics["resident_moved_bytes"] == 0


def test_b3_byte_move_is_counted_by_the_device_too(real: dict[str, DemoResult]) -> None:
    """B3: where no layer has a table of its own, bytes move."""
    found = real["move"]
    assert found.remap["move"] > 0
    assert found.remap["layer"] == 0
    assert found.counted["resident_moved_bytes"] == found.metrics["resident_moved_bytes"] > 0
    assert found.metrics["packed_bytes"] == 0


def test_the_model_file_is_named_by_its_hash(real: dict[str, DemoResult], smollm2: Bundle) -> None:
    assert smollm2.sha256 is not None
    assert len(smollm2.sha256) == 64
    assert {found.model["sha256"] for found in real.values()} == {smollm2.sha256}


def test_j1_the_ledger_begins_with_what_repeats_the_run(real: dict[str, DemoResult], smollm2: Bundle) -> None:
    """J1: command, seed, configuration, active parts, hashes of sources and model, checks; J2: what was not run."""
    with Ledger.open(f"sqlite:{real['move'].ledger}") as ledger:
        first = next(iter(ledger.events())).event
    facts = msgspec.json.decode(getattr(first, "evidence"))  # noqa: B009
    assert facts["command"] == ["kvsweep", "demo"]
    assert facts["seed"] == REAL.seed
    assert facts["configuration"]["retain"] == "move"
    assert facts["model"]["sha256"] == smollm2.sha256
    assert getattr(first, "implementation").kernels == real["move"].kernels  # noqa: B009 - beside the evidence
    assert "scenarios/demo/run.py" in facts["sources_sha256"]
    assert set(facts["not_run"]) == set(real["move"].not_run) - {"native extension", "GPU transfer"}
    assert facts["checks"]


@pytest.mark.skipif(why_not_native() is not None, reason="the native kernels are not built")
def test_c2_native_and_numpy_kernels_give_one_digest(tmp_path: Path) -> None:
    """J1: the ledger says which ran; the digest, over every event and the final state, does not depend on it."""
    results = []
    for name in ("native", "numpy"):
        url = f"sqlite:{tmp_path / name}.ledger"
        options = DemoOptions(kernels=name, synthetic=True, prompt_tokens=256, rounds=1)
        results.append(run_demo(options, ledger=url, command=[]))
    native, numpy = results
    assert native.digest == numpy.digest
    assert native.tokens == numpy.tokens
    assert native.kernels.startswith("native (")
    assert (numpy.kernels, "native extension" in numpy.not_run) == ("numpy", True)
    assert "native extension" not in native.not_run
