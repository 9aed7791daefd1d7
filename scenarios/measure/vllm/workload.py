"""Prompts of the checks: stretches of the shipped text, in the model's own tokens, drawn by a seed."""

from __future__ import annotations

import random

from kvsweep.scenarios.demo.text import load_text
from kvsweep.scenarios.demo.tokenizer import BpeTokenizer
from kvsweep.scenarios.demo.weights import ModelFile, find_model_file

SEED = 20260916


def text_tokens() -> list[int]:
    """The shipped text as token ids of the demo's model. Raises MissingModel where its package is absent."""
    return BpeTokenizer(ModelFile(find_model_file()).vocabulary()).encode(load_text().body)


def prompts(
    tokens: list[int], *, count: int, shortest: int, longest: int, shared: int = 0, groups: int = 1, seed: int = SEED
) -> list[list[int]]:
    """`count` prompts of `shortest` to `longest` tokens, spread evenly over the range and shuffled.

    shared  tokens that every prompt of a group begins with, less than `shortest`
    groups  how many different beginnings there are; prompts take turns
    Raises ValueError for a range that is empty or longer than the text, or a beginning that fills a prompt.
    """
    if not 0 < shortest <= longest <= len(tokens):
        raise ValueError(f"shortest, longest: expected 0 < {shortest} <= {longest} <= {len(tokens)} (the text)")
    if shared >= shortest:
        raise ValueError(f"shared: expected less than the shortest prompt of {shortest} tokens, got {shared}")
    draw = random.Random(seed)
    lengths = [shortest + (longest - shortest) * index // max(count - 1, 1) for index in range(count)]
    draw.shuffle(lengths)

    def stretch(length: int) -> list[int]:
        at = draw.randrange(len(tokens) - length + 1)
        return tokens[at : at + length]

    beginnings = [stretch(shared) for _ in range(groups)]
    return [beginnings[index % groups] + stretch(length - shared) for index, length in enumerate(lengths)]
