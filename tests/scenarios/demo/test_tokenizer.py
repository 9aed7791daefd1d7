"""The text a run starts from, and text to tokens and back."""

import re
from pathlib import Path

import pytest

from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.text import TextError, load_text
from kvsweep.scenarios.demo.tokenizer import BpeTokenizer, ByteTokenizer
from kvsweep.scenarios.demo.weights import ModelFileError, Vocabulary


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


def naive_bpe(text: str, vocabulary: Vocabulary) -> list[int]:
    """ASCII text: digits alone, then the GPT-2 words, then merges by rank until none applies."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    rank = {pair: index for index, pair in enumerate(vocabulary.merges)}
    words = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?!\S)|\s+")
    out = []
    for piece in re.findall(r"\d|\D+", text):
        for word in [piece] if piece.isdigit() else words.findall(piece):
            parts = [{" ": "Ġ", "\n": "Ċ"}.get(char, char) for char in word]
            while len(parts) > 1:
                best = min(range(len(parts) - 1), key=lambda i: rank.get((parts[i], parts[i + 1]), len(rank)))
                if (parts[best], parts[best + 1]) not in rank:
                    break
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
            out += [ids[part] for part in parts]
    return out


def test_ids_equal_a_naive_merge_loop(smollm2: Bundle) -> None:
    assert isinstance(smollm2.tokenizer, BpeTokenizer)
    text = load_text().body[:8000] + "In 1787 there were 13 states; it's 2,048 tokens,  12  well...\n\n\n  x = 3.14159"
    assert smollm2.tokenizer.encode(text) == naive_bpe(text, smollm2.tokenizer.vocabulary)


def test_every_digit_is_a_token_of_its_own(smollm2: Bundle) -> None:
    pieces = [smollm2.tokenizer.decode([token]) for token in smollm2.tokenizer.encode("year 20260916, 12 34")]
    assert [piece for piece in pieces if any(char.isdigit() for char in piece)] == list("202609161234")


def test_text_comes_back_as_it_was(smollm2: Bundle) -> None:
    for text in (load_text().body, "日本語 — naïve\tcafé 🙂\r\n", "", "  leading and trailing  "):
        assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


def test_a_text_cannot_spell_a_control_token(smollm2: Bundle) -> None:
    tokenizer = smollm2.tokenizer
    assert isinstance(tokenizer, BpeTokenizer)
    ids = tokenizer.encode("<|im_start|>system")
    assert not set(ids) & set(tokenizer.specials.values())
    assert tokenizer.decode(ids) == "<|im_start|>system"
    assert tokenizer.specials["<|im_end|>"] == tokenizer.eos == 2
    assert tokenizer.vocab_size == 49152


def test_an_unknown_id_is_refused(smollm2: Bundle) -> None:
    with pytest.raises(ValueError, match=r"ids\[1\]: expected a token id in \[0, 49152\), got 49152"):
        smollm2.tokenizer.decode([5, 49152])
    with pytest.raises(ValueError, match=r"ids\[0\]: expected a token id in \[0, 256\), got -1"):
        ByteTokenizer().decode([-1])


def test_another_splitting_rule_is_refused() -> None:
    other = Vocabulary(tokens=("a",), merges=(), control=(), pre="llama-bpe", bos=None, eos=None)
    with pytest.raises(ModelFileError, match=r"tokenizer.ggml.pre: expected 'smollm'.*got 'llama-bpe'"):
        BpeTokenizer(other)


def test_bytes_are_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é!") == [0xC3, 0xA9, 0x21]
    assert tokenizer.decode([0xC3, 0xA9, 0x21]) == "é!"
    assert tokenizer.decode([0xC3]) == "�"
    assert tokenizer.eos is None
