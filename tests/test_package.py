"""What is built from a checkout: wheel and sdist carry the real files behind the links, and the wheel imports alone."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("kernels/native/", "ledger/native/", "scenarios/measure/gpu/", "scenarios/measure/vllm/")
"""C++ sources, which are shipped as what becomes of them, and what only scripts of the checkout run."""
FOLDERS = ("kernels", "ledger", "transports", "runtime", "scenarios")


def shipped() -> dict[str, bytes]:
    """Path inside the package -> bytes, of every file that an installation needs."""
    files = {
        path.relative_to(ROOT / "src/kvsweep").as_posix(): path
        for path in [*(ROOT / "src/kvsweep").glob("*.*"), *(ROOT / "src/kvsweep/cli").glob("*.*")]
    } | {path.relative_to(ROOT).as_posix(): path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix != ".pyc"
        and not name.startswith(LEFT_OUT)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one sdist, and one wheel built out of the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    code = "import sys, scikit_build_core.build as b; b.build_{0}(sys.argv[1])"
    checkout = out / "checkout"
    ignore = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=ignore)
    build(code.format("sdist"), checkout, out)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out / "unpacked", filter="data")
    build(code.format("wheel"), next((out / "unpacked").iterdir()), out)
    return out


def build(code: str, source: Path, out: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_carries_every_file_of_the_folders(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        inside = {
            name.removeprefix("kvsweep/"): wheel.read(name) for name in wheel.namelist() if name.startswith("kvsweep/")
        }
        licences = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    wanted = shipped()
    built_here = sorted(inside.keys() - wanted.keys())
    assert wanted.keys() <= inside.keys()
    extensions = ("kernels/_native", "ledger/_sets", "ledger/_store")
    assert len(built_here) == len(extensions), f"the extensions and nothing else, got {built_here}"
    for name, extension in zip(built_here, extensions, strict=True):
        assert re.fullmatch(rf"{extension}\..*\.so", name)
    assert [name for name in wanted if inside[name] != wanted[name]] == []
    assert [name for name in inside if name.startswith(LEFT_OUT)] == []
    assert len(licences) == 1


def test_the_wheel_imports_without_the_checkout(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    # The checkout is installed in editable form here; its finder would answer first.
    code = (
        "import json, sys\n"
        "sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in type(finder).__module__]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import kvsweep, kvsweep.ledger.ids, kvsweep.ledger.phases, kvsweep.kernels\n"
        "print(json.dumps([kvsweep.__file__, kvsweep.ledger.ids.__file__, kvsweep.__version__]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    front, ids, version = json.loads(done.stdout)
    assert Path(front) == tmp_path / "kvsweep/__init__.py"
    assert Path(ids) == tmp_path / "kvsweep/ledger/ids.py"
    assert f"-{version}-" in next(built.glob("*.whl")).name


def test_the_links_are_relative_and_lead_to_the_folders() -> None:
    """An absolute link would work on one machine only."""
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "src/kvsweep").iterdir() if path.is_symlink()}
    assert links == {folder: f"../../{folder}" for folder in FOLDERS}


def test_the_type_marker_is_shipped() -> None:
    spec = importlib.util.find_spec("kvsweep")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").read_bytes() == b""
