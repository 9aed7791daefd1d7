"""Start-up refusals: one sentence for each difference, naming what was expected and what came."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvsweep.runtime.vllm import selftest
from kvsweep.runtime.vllm.selftest import Engine, Unsupported

RIGHT = Engine(
    version="0.32.0+cpu",
    platform="cpu",
    kv_role="kv_both",
    groups=("FullAttentionSpec",),
    dtype="float32",
    cache_dtype="auto",
)


def test_the_engine_that_was_tested_is_served() -> None:
    assert selftest.differences(RIGHT) == []
    selftest.refuse([])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": "0.33.1"}, "vLLM: expected version 0.32.x, which was tested, got 0.33.1"),
        (
            {"groups": ("FullAttentionSpec", "SlidingWindowSpec")},
            "model: expected one KV-cache group of full attention (FullAttentionSpec), "
            "got ['FullAttentionSpec', 'SlidingWindowSpec']",
        ),
        ({"sliding_window": 4096}, "model: expected no sliding window, got one of 4096 tokens"),
        ({"dtype": "float16"}, "dtype: expected float32 or bfloat16, got float16"),
        ({"cache_dtype": "fp8"}, "kv_cache_dtype: expected auto, got fp8"),
        ({"alibi": True}, "model with ALiBi: expected False, got True"),
        ({"mla": True}, "model with MLA: expected False, got True"),
        ({"decode_context": 2}, "decode_context_parallel_size: expected 1, got 2"),
        ({"platform": "cuda"}, "platform: expected cpu, got cuda"),
        ({"async_scheduling": True}, "async_scheduling: expected False, got True"),
        ({"speculative": True}, "speculative decoding: expected False, got True"),
        ({"kv_role": "kv_producer"}, "kv_role: expected kv_both, got kv_producer"),
    ],
)
def test_each_difference_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    assert selftest.differences(replace(RIGHT, **change)) == [sentence]


def test_a_refusal_names_every_difference() -> None:
    found = selftest.differences(replace(RIGHT, mla=True, pipeline=2))
    with pytest.raises(Unsupported) as error:
        selftest.refuse(found)
    assert str(error.value) == (
        "KVSweepConnector cannot serve this engine: model with MLA: expected False, got True; "
        "pipeline_parallel_size: expected 1, got 2"
    )


def test_names_and_order_of_hooks() -> None:
    assert selftest.missing_names("BlockPool", ["touch"], ["touch"]) == []
    assert selftest.missing_names("BlockPool", ["touch"], ["touch", "free_blocks"]) == [
        "BlockPool: expected free_blocks, got none of that name"
    ]
    assert selftest.wrong_order("operator", ["a", "b"], ["a", "b"]) == []
    assert selftest.wrong_order("operator", ["a", "b"], ["b"]) == ["operator: expected the order ['a', 'b'], got ['b']"]
