"""Everything that needs a GPU, in one run of at most six minutes, with a record as JSON: see docs/cuda.md.

Needs NumPy, msgspec, anyio and CuPy; torch, gguf and tokenizers for the demo and the torch peer. The package need not
be installed. What is missing or does not run is listed, and the rest is run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("numpy", "msgspec", "anyio")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dry-run", action="store_true", help="small sizes on the simulated driver: no GPU needed")
    parser.add_argument("--record", type=Path, help="where the JSON goes [benchmarks/records/gpu-check.json]")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels, for libraries that are missing")
    parser.add_argument("--only", action="append", help="a section; may be repeated")
    parser.add_argument("--small", action="store_true", help="small sizes on the GPU, as for compute-sanitizer")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no section is begun [240]")
    return parser.parse_args()


def provide(wheels: Path | None) -> None:
    """Put the package on the path, and libraries out of the wheels beside it."""
    sys.path.insert(0, str(ROOT / "src"))
    if wheels is not None:
        target = tempfile.mkdtemp(prefix="gpu-check-")
        # Without what they depend on, and behind the path: a library that is here already is not replaced.
        files = [str(wheel) for wheel in sorted(wheels.glob("*.whl"))]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target]
        subprocess.run([*command, *files], check=False)
        sys.path.append(target)


def main() -> int:
    given = arguments()
    provide(given.wheels)
    try:
        from kvsweep.kernels.cuda.errors import CudaError
        from kvsweep.kernels.cuda.nvidia import NvidiaDriver
        from kvsweep.kernels.cuda.simulated import SimulatedDriver
        from kvsweep.scenarios.measure.gpu.check import SECTIONS, Check
    except ImportError as error:
        print(f"gpu-check: {error}; it needs {', '.join(NEEDED)} (--wheels takes them from a folder)", file=sys.stderr)
        return 2
    strange = sorted(set(given.only or ()) - set(SECTIONS))
    if strange:
        print(f"gpu-check: --only: expected {' or '.join(SECTIONS)}, got {strange[0]!r}", file=sys.stderr)
        return 2
    try:
        driver = SimulatedDriver(seed=20260916, multiprocessors=1) if given.dry_run else NvidiaDriver()
    except CudaError as error:
        print(f"gpu-check: {error} (--dry-run needs no GPU)", file=sys.stderr)
        return 2
    record = given.record or ROOT / ("build/gpu-check.json" if given.dry_run else "benchmarks/records/gpu-check.json")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        check = Check(
            driver,
            Path(folder),
            small=given.small or given.dry_run,
            sections=given.only or SECTIONS,
            again=() if given.dry_run else (sys.executable, str(Path(__file__).resolve())),
            seconds=given.seconds,
            said=lambda line: print(line, flush=True),
        )
        found = check.run()
    found["command"] = ["scripts/gpu-check", *sys.argv[1:]]
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for goal in found["goals"]:
        if goal["met"] is not None:
            print(f"{'met' if goal['met'] else 'MISSED'}: {goal['goal']}, measured {goal['measured']}")
    for line in found["not_run"]:
        print(f"not run: {line}")
    print(f"{'passed' if found['passed'] else 'FAILED'}: {record}")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
