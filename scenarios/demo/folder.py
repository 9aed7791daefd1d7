"""A model as the folder that Hugging Face's libraries and engines built on them read: tensors, shape, tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvsweep.scenarios.demo.bundle import Bundle, load_smollm2
from kvsweep.scenarios.demo.model import LayerShape, Model, ModelConfig, ModelWeights
from kvsweep.scenarios.demo.synthetic import synthetic_config, synthetic_model
from kvsweep.scenarios.demo.tokenizer import BpeTokenizer, ByteTokenizer

# LlamaForCausalLM's names of one layer's tensors, in the order of LayerWeights.
NAMES = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
SAFETENSORS_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class FolderError(ValueError):
    """The folder cannot be written, or the model has no such form."""


def llama_tensors(weights: ModelWeights) -> dict[str, Tensor]:
    """The tensors under LlamaForCausalLM's names; a tied head is the embedding and has no entry of its own."""
    tensors = {"model.embed_tokens.weight": weights.embedding}
    for index, layer in enumerate(weights.layers):
        for field, name in NAMES.items():
            tensors[f"model.layers.{index}.{name}.weight"] = getattr(layer, field)
    tensors["model.norm.weight"] = weights.norm
    if weights.head is not weights.embedding:
        tensors["lm_head.weight"] = weights.head
    return tensors


def llama_config(config: ModelConfig, *, tied: bool, bos: int | None, eos: int | None) -> dict[str, Any]:
    """The content of `config.json`. Without `quantization_config`: the tensors are plain numbers of the model's dtype.

    Raises FolderError where a layer has a window: LlamaForCausalLM knows full attention only.
    """
    windows = [index for index, layer in enumerate(config.layers) if layer.kind != "full"]
    if windows:
        raise FolderError(f"layers: expected full attention in all, got a sliding window in layer {windows[0]}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}[config.dtype],
        "eos_token_id": eos,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.context,
        "mlp_bias": False,
        "num_attention_heads": config.heads,
        "num_hidden_layers": len(config.layers),
        "num_key_value_heads": config.kv_heads,
        # A GGUF file stores it as a 32-bit float: 1e-05 comes out as 9.999999747378752e-06, the same number in fp32.
        "rms_norm_eps": float(f"{config.norm_eps:.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": tied,
        "vocab_size": config.vocab,
    }


def safetensors_parts(tensors: dict[str, Tensor]) -> Iterator[bytes]:
    """A safetensors file, part by part: the header's length, the header, then each tensor's bytes in the given order.

    Raises FolderError for a dtype other than float32 and bfloat16.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_TYPES:
            raise FolderError(f"{name}: expected float32 or bfloat16, got {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": SAFETENSORS_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    yield struct.pack("<Q", len(text))
    yield text
    for tensor in tensors.values():
        yield tensor.contiguous().view(torch.uint8).numpy().tobytes()


def write_folder(folder: Path, bundle: Bundle) -> list[Path]:
    """Write `bundle` into a folder that is empty or not there yet; returns the files, in the order they were written.

    `config.json` comes last: a folder without it is one that was not finished. The byte tokenizer has no file (its ids
    are the bytes): engines read such a model with token ids as prompts.
    Raises FolderError for a folder with something in it and for a model with sliding windows, OSError of the disk.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder}: expected an empty folder or none, got one with something in it")
    tokenizer, weights = bundle.tokenizer, bundle.model.weights
    bos = tokenizer.vocabulary.bos if isinstance(tokenizer, BpeTokenizer) else None
    config = llama_config(bundle.model.config, tied=weights.head is weights.embedding, bos=bos, eos=tokenizer.eos)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "model.safetensors"]
    with written[0].open("wb") as file:
        for part in safetensors_parts(llama_tensors(weights)):
            file.write(part)
    texts = {"generation_config.json": _json({"bos_token_id": bos, "eos_token_id": tokenizer.eos})}
    if isinstance(tokenizer, BpeTokenizer):
        names = tokenizer.vocabulary.tokens
        texts["tokenizer.json"] = tokenizer.to_json()
        texts["tokenizer_config.json"] = _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": None if bos is None else names[bos],
                "eos_token": None if tokenizer.eos is None else names[tokenizer.eos],
                "model_max_length": bundle.model.config.context,
                "clean_up_tokenization_spaces": False,
            }
        )
    texts["config.json"] = _json(config)
    for name, text in texts.items():
        written.append(folder / name)
        written[-1].write_text(text, encoding="utf-8")
    return written


def tiny_llama(seed: int, *, heads: int = 4, kv_heads: int = 2, layers: int = 4) -> Bundle:
    """A seeded Llama of full-attention layers, 32 numbers a head, that splits over two ranks; one id a byte.

    Raises ValueError for a negative seed or a shape that ModelConfig refuses.
    """
    shape = synthetic_config("fp32", (LayerShape("full"),) * layers)
    config = replace(shape, name="tiny-llama", heads=heads, kv_heads=kv_heads, hidden=heads * shape.head_dim)
    model: Model = synthetic_model(seed, config)
    return Bundle(model, ByteTokenizer(), None, None)


def smollm2_folder(folder: Path, path: Path | None = None) -> list[Path]:
    """Write SmolLM2-135M in fp32, from its installed package or from another GGUF file, as `write_folder` does."""
    return write_folder(folder, load_smollm2("fp32", path))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
