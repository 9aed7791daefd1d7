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
