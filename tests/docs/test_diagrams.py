"""Diagrams are drawn from the tables, and a page that is not current is found."""

import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_table_is_drawn_arrow_by_arrow(docs: ModuleType) -> None:
    table = {("IDLE", "Started"): "MOVING", ("MOVING", "Done"): "IDLE", ("MOVING", "Failed"): "IDLE"}
    assert docs.diagram(table, "IDLE").splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    direction LR",
        "    [*] --> IDLE",
        "    IDLE --> MOVING: Started",
        "    MOVING --> IDLE: Done, Failed",
        "```",
    ]


def test_the_page_shows_every_transition_of_the_tables(docs: ModuleType) -> None:
    """Read back from the page, the arrows are the tables: nothing more, nothing less."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for name, (table, start) in docs.phase_tables().items():
        part = page.split(f"<!-- generated:{name} -->")[1].split(f"<!-- end:{name} -->")[0]
        arrows = re.findall(r"^    (\w+) --> (\w+): (.+)$", part, re.MULTILINE)
        drawn = {(state, event): following for state, following, events in arrows for event in events.split(", ")}
        assert drawn == dict(table), name
        assert f"[*] --> {start}\n" in part


def test_rooms_are_read_off_folders_and_imports(docs: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "ledger/__init__.py", '"""Facts."""')
    write(tmp_path, "ledger/ids.py", '"""Ids | numbers.\n\nMore."""')
    write(tmp_path, "ledger/native/ids.hpp", "// Lists of ids\n// at the edge. Borrowed.\n#pragma once\n")
    write(tmp_path, "ledger/store/__init__.py", '"""Files."""')
    write(tmp_path, "ledger/store/log.py", '"""Logs."""\nfrom kvsweep.ledger.ids import Rows')
    write(tmp_path, "runtime/__init__.py", '"""Decides."""')
    write(
        tmp_path, "runtime/driver.py", '"""Drives."""\nfrom kvsweep.ledger import ids\nimport kvsweep.ledger.store.log'
    )
    rooms = docs.read_rooms(tmp_path)
    assert docs.rooms_table(rooms).splitlines()[2:] == [
        "| [`ledger`](../ledger) | Facts. |",
        "| [`ledger/store`](../ledger/store) | Files. |",
        "| [`runtime`](../runtime) | Decides. |",
    ]
    assert docs.rooms_diagram(rooms).splitlines() == [
        "```mermaid",
        "flowchart BT",
        '    ledger_store["ledger/store"] --> ledger["ledger"]',
        '    runtime["runtime"] --> ledger_store["ledger/store"]',
        "```",
    ]
    assert docs.modules_tables(rooms).splitlines()[:6] == [
        "**ledger**",
        "",
        "| module | what it is for |",
        "| --- | --- |",
        "| [`ids.py`](../ledger/ids.py) | Ids \\| numbers. |",
        "| [`native/ids.hpp`](../ledger/native/ids.hpp) | Lists of ids at the edge |",
    ]


def test_a_module_that_does_not_say_what_it_is_for_is_refused(docs: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "runtime/__init__.py", '"""Decides."""')
    write(tmp_path, "runtime/driver.py", "x = 1")
    with pytest.raises(docs.DocsError) as error:
        docs.read_rooms(tmp_path)
    assert str(error.value) == "runtime/driver.py has no docstring"


def test_rooms_that_import_each_other_are_drawn_both_ways(docs: ModuleType) -> None:
    rooms = {"a": docs.Room("a", "", {}, frozenset("b")), "b": docs.Room("b", "", {}, frozenset("a"))}
    assert docs.rooms_diagram(rooms).splitlines()[2:-1] == ['    a["a"] --> b["b"]', '    b["b"] --> a["a"]']


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_page_without_markers_is_refused(docs: ModuleType) -> None:
    with pytest.raises(docs.DocsError) as error:
        docs.replace_part("no markers", "life", "x")
    assert str(error.value) == "architecture.md: expected one pair of markers generated:life and end:life"


def test_check_names_a_stale_page_and_writes_nothing(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old", encoding="utf-8")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "pages", lambda root: {page: "new"})
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().out == "page.md: not current, run python scripts/docs.py\n"
    assert page.read_text(encoding="utf-8") == "old"
    assert docs.main([]) == 0
    assert page.read_text(encoding="utf-8") == "new"
    assert docs.main(["--check"]) == 0
