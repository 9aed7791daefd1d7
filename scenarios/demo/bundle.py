"""A model with its tokenizer and its provenance: what a run needs to start, whichever model it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from kvsweep.scenarios.demo.model import DType, Model
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer
from kvsweep.scenarios.demo.weights import ModelFile, file_sha256, find_model_file


@dataclass(frozen=True, slots=True)
class Bundle:
    """A loaded model. `path` and `sha256` are None for a model that was made from a seed."""

    model: Model
    tokenizer: Tokenizer
    path: Path | None
    sha256: str | None


def load_smollm2(dtype: DType = "fp32", path: Path | None = None) -> Bundle:
    """SmolLM2-135M from its installed package, or from another GGUF file of the same kind.

    Sets torch to one thread: the low bits of a result depend on the number of threads.
    Raises MissingModel or ModelFileError with one sentence that says what to do.
    """
    torch.set_num_threads(1)
    path = find_model_file() if path is None else path
    file = ModelFile(path)
    config = file.config(dtype)
    tokenizer = BpeTokenizer(file.vocabulary())
    return Bundle(Model(config, file.weights(config)), tokenizer, path, file_sha256(path))


def load_synthetic(seed: int, dtype: DType = "fp32") -> Bundle:
    """The seeded synthetic model with its byte tokenizer, on one torch thread."""
    torch.set_num_threads(1)
    return Bundle(synthetic_model(seed, synthetic_config(dtype)), ByteTokenizer(), None, None)
