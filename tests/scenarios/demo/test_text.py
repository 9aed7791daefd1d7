"""The shipped text, and texts of the user's."""

from pathlib import Path

import pytest

from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.text import TextError, load_text


def test_the_shipped_text_names_its_source_and_is_ascii() -> None:
    text = load_text()
    assert "Public domain" in text.source
    assert text.body.startswith("THE CONSTITUTION OF THE UNITED STATES\n\nWe the People")
    assert text.body.isascii()


def test_the_shipped_text_has_at_least_5000_tokens(smollm2: Bundle) -> None:
    assert len(smollm2.tokenizer.encode(load_text().body)) >= 5000


def test_a_file_of_the_users_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("naïve\r\n日本\n".encode())
    assert load_text(path).body == "naïve\r\n日本\n"
    assert load_text(path).source == str(path)


def test_bad_texts_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"absent.txt: expected a readable file, got No such file or directory"):
        load_text(tmp_path / "absent.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(TextError, match=r"latin.txt: expected UTF-8, got byte 0xe9 at 3"):
        load_text(tmp_path / "latin.txt")
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(TextError, match=r"blank.txt: expected some text, got a blank file"):
        load_text(tmp_path / "blank.txt")
