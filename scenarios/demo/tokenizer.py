"""Text to token ids and back: byte-level BPE with digits split first, and plain bytes for the synthetic model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from kvsweep.scenarios.demo.weights import ModelFileError, Vocabulary


class Tokenizer(Protocol):
    """What the serving loop needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def eos(self) -> int | None:
        """The id that ends a text, if the model has one."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; nothing is added in front or behind, and no text spells a control token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Raises ValueError for an id that is not there."""
        ...


class BpeTokenizer:
    """The byte-level BPE of a model file; digits are split one by one before anything else, as in its training."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ModelFileError when the file names a splitting rule other than the digits-first one."""
        if vocabulary.pre != "smollm":
            raise ModelFileError(f"tokenizer.ggml.pre: expected 'smollm' (digits first), got {vocabulary.pre!r}")
        ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        specials = [vocabulary.tokens[index] for index in vocabulary.control]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
        tokenizer.encode_special_tokens = True  # "<|im_start|>" in a text is text, not a control token
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary.tokens)

    @property
    def eos(self) -> int | None:
        """The id that ends a text."""
        return self.vocabulary.eos

    @property
    def specials(self) -> dict[str, int]:
        """Control tokens by name."""
        return {self.vocabulary.tokens[index]: index for index in self.vocabulary.control}

    def to_json(self) -> str:
        """The content of a `tokenizer.json`. What it does not say: that control tokens in a text stay text."""
        return self._tokenizer.to_str(pretty=False)

    def encode(self, text: str) -> list[int]:
        """As `Tokenizer.encode`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """As `Tokenizer.decode`; control tokens are spelled out."""
        _check_ids(ids, self.vocab_size)
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


class ByteTokenizer:
    """One id a byte of UTF-8: 256 ids, no end of text."""

    @property
    def vocab_size(self) -> int:
        """256."""
        return 256

    @property
    def eos(self) -> int | None:
        """None: no byte ends a text."""
        return None

    def encode(self, text: str) -> list[int]:
        """The bytes of `text` in UTF-8."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        """As `Tokenizer.decode`."""
        _check_ids(ids, self.vocab_size)
        return bytes(ids).decode("utf-8", errors="replace")


def _check_ids(ids: Sequence[int], size: int) -> None:
    # The library skips unknown ids without a word, which would hide a wrong id.
    for position, token in enumerate(ids):
        if not 0 <= token < size:
            raise ValueError(f"ids[{position}]: expected a token id in [0, {size}), got {token}")
