"""The folder that other engines read: transformers loads it and computes the same, bit for bit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.command_line import Command, command_of
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvsweep.scenarios.demo.attention import ContiguousKv
from kvsweep.scenarios.demo.bundle import Bundle, load_synthetic
from kvsweep.scenarios.demo.folder import FolderError, safetensors_parts, tiny_llama, write_folder
from kvsweep.scenarios.demo.model import Model
from kvsweep.scenarios.demo.text import load_text

SEED = 20260916


def forward(model: Model, tokens: Tensor) -> Tensor:
    return model.forward(tokens, torch.arange(len(tokens)), ContiguousKv(model.config, len(tokens)))


@torch.no_grad()
def loaded_logits(folder: Path, tokens: Tensor) -> Tensor:
    """Logits of the class that the folder itself names."""
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    logits: Tensor = loaded(tokens[None], use_cache=False).logits[0]
    return logits


def test_transformers_computes_the_same_from_the_folder(smollm2: Bundle, tmp_path: Path) -> None:
    """The real model: no tolerance, the head tied, no quantisation, the text split the same way."""
    names = [path.name for path in write_folder(tmp_path / "model", smollm2)]
    assert names == [
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
    ]
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-5
    assert "lm_head.weight" not in load_file(tmp_path / "model/model.safetensors")
    body = load_text().body
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokens = tokenizer.encode(body)
    assert tokens == smollm2.tokenizer.encode(body)
    assert tokenizer.decode(tokens) == body
    assert tokenizer.eos_token_id == smollm2.tokenizer.eos
    few = torch.tensor(tokens[:96])
    assert torch.equal(forward(smollm2.model, few), loaded_logits(tmp_path / "model", few))


def test_a_seeded_llama_splits_over_two_ranks_and_loads(tmp_path: Path) -> None:
    bundle = tiny_llama(SEED)
    assert (bundle.model.config.heads, bundle.model.config.kv_heads) == (4, 2)
    write_folder(tmp_path, bundle)
    assert not (tmp_path / "tokenizer.json").exists()
    tokens = torch.tensor(list(b"We the People of the United States"))
    logits = loaded_logits(tmp_path, tokens)
    assert torch.equal(forward(bundle.model, tokens), logits)
    assert not torch.equal(forward(tiny_llama(SEED + 1).model, tokens), logits)


def test_bf16_tensors_keep_their_bits(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5).bfloat16(), "b": torch.randn(2, 2)}
    (tmp_path / "x.safetensors").write_bytes(b"".join(safetensors_parts(tensors)))
    back = load_file(tmp_path / "x.safetensors")
    assert {name: tensor.dtype for name, tensor in back.items()} == {"a": torch.bfloat16, "b": torch.float32}
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_what_has_no_such_form_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"^layers: expected full attention in all, got a sliding window in layer 1$"):
        write_folder(tmp_path / "a", load_synthetic(SEED))
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").touch()
    with pytest.raises(FolderError, match=r"b: expected an empty folder or none, got one with something in it$"):
        write_folder(tmp_path / "b", tiny_llama(SEED))
    with pytest.raises(FolderError, match=r"^a: expected float32 or bfloat16, got torch.int64$"):
        list(safetensors_parts({"a": torch.arange(3)}))
    with pytest.raises(ValueError, match=r"ModelConfig.heads: expected a multiple of kv_heads=3, got 4"):
        replace(tiny_llama(SEED).model.config, kv_heads=3)


@pytest.fixture
def kvsweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(monkeypatch, capsys)


def test_the_command_writes_the_seeded_model_and_says_its_sizes(kvsweep_command: Command, tmp_path: Path) -> None:
    answer = kvsweep_command("model", tmp_path / "tiny", "--tiny", "--seed", SEED, "--json")
    assert answer.code == 0
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "tiny").iterdir()}
    assert answer.json == {"folder": str(tmp_path / "tiny"), "bytes": sizes}
    assert set(sizes) == {"model.safetensors", "generation_config.json", "config.json"}
    again = kvsweep_command("model", tmp_path / "tiny", "--tiny")
    assert "expected an empty folder or none, got one with something in it" in again.expect_sentence(2)


def test_the_command_refuses_what_is_no_model(kvsweep_command: Command, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a model")
    sentence = kvsweep_command("model", tmp_path / "out", "--gguf", tmp_path / "text").expect_sentence(1)
    assert "expected a GGUF file" in sentence
    sentence = kvsweep_command("model", tmp_path / "out", "--gguf", tmp_path / "text", "--tiny").expect_sentence(2)
    assert "--tiny is made from a seed: it takes no --gguf" in sentence
    (tmp_path / "file").touch()
    sentence = kvsweep_command("model", tmp_path / "file/inside", "--tiny").expect_sentence(1)
    assert "Not a directory" in sentence
    assert not (tmp_path / "out").exists()
