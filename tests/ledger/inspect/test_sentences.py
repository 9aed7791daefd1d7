"""Every event as a line: each type has one, ids are told shortly, and no peer writes to the terminal."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsweep.ledger import events as e
from kvsweep.ledger.ids import POOL, RequestKey, int32_bytes
from kvsweep.ledger.inspect.explain import CLAUSE_TITLES, CLAUSES, NOT_PLANNED, PLANNED
from kvsweep.ledger.inspect.sentences import SENTENCES, ids, sentence
from kvsweep.ledger.joint import JOINT
from kvsweep.ledger.store.codec import EVENT_TYPES

ROOT = Path(__file__).resolve().parents[3]


def test_every_event_type_has_a_sentence(make_event: Any) -> None:
    assert set(SENTENCES) == set(EVENT_TYPES.values())
    rng = np.random.default_rng(20260916)
    for kind in EVENT_TYPES.values():
        for _ in range(5):
            said = sentence(make_event(kind, rng))
            assert said.isprintable()
            assert said


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ([], ""),
        ([7], "7"),
        ([7, 8], "7–8"),
        ([0, 1, 2, 9, 4, 5], "0–2, 9, 4–5"),
        ([3, 2, 1], "3, 2, 1"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ids_are_told_as_runs(blocks: list[int], told: str) -> None:
    assert ids(int32_bytes(blocks)) == told


def test_f5_what_a_peer_said_cannot_write_to_the_terminal() -> None:
    life = RequestKey("a\x1b[2J", 1)
    refused = e.CommandRefused(request=life, seq=0, command="Select\x1b[2J", state="s", reason="r\n\x07")
    assert sentence(refused) == r"Select\x1b[2J is refused in s: r\n\x07"


def test_the_pool_is_named_by_sizes_and_ranks(written: Any) -> None:
    assert sentence(written.events[0]) == (
        "the run: 3 layers, ranks 0, 1, 8, 4 blocks (one number a group), 32 CPU blocks"
    )
    assert written.events[0].request == POOL


def test_every_clause_that_an_explanation_may_name_has_words_and_stands_in_the_contract() -> None:
    listed = set(re.findall(r'^id = "([A-J]\d+)"', (ROOT / "docs/contract.toml").read_text(), re.MULTILINE))
    named = {clause for clauses in CLAUSES.values() for clause in clauses}
    named |= {rule.clause for rule in JOINT} | {"F2", "G1", "G3"}
    named |= {clause for _, clauses in (*NOT_PLANNED.values(), *PLANNED.values()) for clause in clauses}
    assert named <= set(CLAUSE_TITLES)
    assert set(CLAUSE_TITLES) <= listed
    assert all(words.isprintable() and words for words in CLAUSE_TITLES.values())


def test_every_reason_of_a_refused_plan_has_a_rule() -> None:
    """Oracle: the reasons that the deciding code gives."""
    source = "\n".join(path.read_text() for path in (ROOT / "runtime/core").glob("*.py"))
    given = set(re.findall(r'CannotPlan\(\s*\w+(?:\("\w+"\))?,\s*"(\w+)"', source))
    given |= set(re.findall(r'CannotPlan\(\s*"\w+",\s*"(\w+)"', source)) | set(re.findall(r'reason="(no_\w+)"', source))
    assert given
    assert given <= set(NOT_PLANNED)
