"""What is read from vLLM: its configuration, the names and the hook order that are relied on, its kernel's data.

Every import of vLLM stands inside the function that needs it.
"""

import hashlib
import inspect
from typing import Any

from kvsweep.ledger.layout import Layout
from kvsweep.runtime.scorers import quest
from kvsweep.runtime.vllm import selftest
from kvsweep.runtime.vllm.start import layout_of
from kvsweep.transports.vllm.scoring import Scoring

HOOKS = (
    "bind_connector_metadata",
    "handle_preemptions",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "build_connector_worker_meta",
    "get_handshake_metadata",
    "set_xfer_handshake_metadata",
    "bind_kv_cache_manager",
    "on_new_request",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "has_pending_block_frees",
    "has_pending_push_work",
    "shutdown",
)
METADATA = ("block_table", "seq_lens", "max_seq_len", "scheduler_metadata", "query_start_loc", "causal")


def describe(config: Any, kv_cache_config: Any) -> selftest.Engine:
    """vLLM's configuration as plain values."""
    import vllm
    from vllm.platforms import current_platform

    model, parallel = config.model_config, config.parallel_config
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    layers = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
    return selftest.Engine(
        version=vllm.__version__,
        platform=current_platform.device_type,
        kv_role=str(config.kv_transfer_config.kv_role),
        groups=tuple(type(spec).__name__ for spec in specs),
        dtype=str(specs[0].dtype).removeprefix("torch.") if specs else "none",
        cache_dtype=str(config.cache_config.cache_dtype),
        sliding_window=getattr(specs[0], "sliding_window", None) if specs else None,
        alibi=bool(getattr(model.hf_text_config, "alibi", False))
        or model.hf_text_config.model_type in ("bloom", "mpt"),
        mla=bool(model.use_mla),
        mm_prefix=bool(getattr(model, "is_mm_prefix_lm", False)),
        speculative=config.speculative_config is not None,
        async_scheduling=bool(config.scheduler_config.async_scheduling),
        pipeline=parallel.pipeline_parallel_size,
        data=parallel.data_parallel_size,
        decode_context=parallel.decode_context_parallel_size,
        prefill_context=parallel.prefill_context_parallel_size,
        v2_runner=bool(config.use_v2_model_runner),
        kv_sharing=len(layers) != model.get_num_layers(parallel),
    )


def layout(config: Any, kv_cache_config: Any) -> Layout:
    """The layout of all ranks together. Raises LayoutError."""
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    names = layer_names(kv_cache_config)
    return layout_of(
        model_hash=hashlib.sha256(repr(config.model_config.hf_text_config.to_dict()).encode()).hexdigest(),
        dtype=str(spec.dtype).removeprefix("torch."),
        block_size=spec.block_size,
        layers=len(names),
        kv_heads=spec.num_kv_heads * config.parallel_config.tensor_parallel_size,
        head_dim=spec.head_size,
    )


def layer_names(kv_cache_config: Any) -> list[str]:
    """Names of the group's layers in decoder order."""
    from vllm.model_executor.models.utils import extract_layer_index

    return sorted(kv_cache_config.kv_cache_groups[0].layer_names, key=extract_layer_index)


def expected_names() -> list[str]:
    """Sentences about names that are relied on and that this vLLM has not."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    found = selftest.missing_names("KVConnectorBase_V1", dir(KVConnectorBase_V1), HOOKS)
    found += selftest.missing_names("CPUAttentionMetadata", list(CPUAttentionMetadata.__dataclass_fields__), METADATA)
    found += selftest.missing_names(
        "BlockPool", dir(BlockPool), ("get_num_free_blocks", "get_new_blocks", "touch", "free_blocks")
    )
    found += selftest.missing_names("KVCacheBlock", dir(KVCacheBlock), ("block_hash", "ref_cnt", "is_null"))
    found += selftest.missing_names("FullAttentionManager", dir(FullAttentionManager), ("free", "cache_blocks"))
    return found


def substitution(connector: Any, name: str) -> list[str]:
    """Sentences about the attention operator: the hook comes first, and what it puts in place is what is read.

    The operator runs once on a layer that only notes what it is given; no KV is touched.
    """
    import torch
    from vllm.forward_context import ForwardContext, override_forward_context
    from vllm.model_executor.layers.attention.attention import unified_attention_with_output

    calls: list[str] = []
    given = object()

    class Layer:
        kv_cache = torch.empty(0)

        class impl:
            @staticmethod
            def forward(layer: Any, q: Any, k: Any, v: Any, kv: Any, metadata: Any, **rest: Any) -> None:
                calls.append("attention" if metadata is given else "attention with the old metadata")

    context = ForwardContext(
        no_compile_layers={name: Layer()}, attn_metadata={name: object()}, slot_mapping={name: None}
    )
    empty = torch.empty(0)
    with override_forward_context(context), connector.probing(calls, given):
        unified_attention_with_output(empty, empty, empty, empty, name)
    return selftest.wrong_order("attention operator", ["wait_for_layer_load", "attention", "save_kv_layer"], calls)


def expected_signatures(connector: type) -> list[str]:
    """Sentences about hooks whose parameters have other names than the connector's own."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    found = []
    for name in HOOKS:
        theirs = [one for one in inspect.signature(getattr(KVConnectorBase_V1, name)).parameters if one != "kwargs"]
        ours = [one for one in inspect.signature(getattr(connector, name)).parameters if one != "kwargs"]
        if theirs != ours:
            found.append(f"KVConnectorBase_V1.{name}: expected the parameters {ours}, got {theirs}")
    return found


def rebuild(config: Any, kv_cache_config: Any) -> Any:
    """(metadata, seq_lens) -> the CPU kernel's scheduling data, as vLLM's own builder makes it."""
    from vllm import _custom_ops as ops
    from vllm import envs
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    heads = config.model_config.get_num_attention_heads(config.parallel_config)
    dtype, cache = config.model_config.dtype, config.cache_config.cache_dtype
    isa = _get_attn_isa(dtype, spec.block_size, spec.head_size, cache)

    def build(metadata: Any, seq_lens: Any) -> Any:
        return ops.cpu_attn_get_scheduler_metadata(
            num_reqs=seq_lens.shape[0],
            num_heads=heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_size,
            seq_lens=seq_lens,
            dtype=dtype,
            query_start_loc=metadata.query_start_loc,
            causal=metadata.causal,
            sliding_window_size=-1,
            isa=isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
            kv_cache_dtype=cache,
        )

    return build


def scoring(config: Any, kv_cache_config: Any) -> Scoring:
    """What this rank needs to score blocks. Raises LayoutError for an order of keys that is not read here."""
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    spec, dtype = kv_cache_config.kv_cache_groups[0].kv_cache_spec, config.model_config.dtype
    return Scoring(
        rank=get_tp_group().rank_in_group,
        layers=len(kv_cache_config.kv_cache_groups[0].layer_names),
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        block_size=spec.block_size,
        order=_get_attn_isa(dtype, spec.block_size, spec.head_size, config.cache_config.cache_dtype),
        score=quest,
    )


def watch_queries(config: Any, names: list[str], scoring: Scoring) -> None:
    """Show each layer's query to `scoring` where its attention begins: no hook of a connector sees one.

    The layer's own attention object is given a `forward` that looks first; vLLM's classes and files stay as they are.
    """
    for at, name in enumerate(names):
        impl = config.compilation_config.static_forward_context[name].impl
        impl.forward = _looking(impl.forward, at, scoring)


def _looking(forward: Any, layer: int, scoring: Scoring) -> Any:
    def looked(attention: Any, query: Any, *rest: Any, **named: Any) -> Any:
        scoring.note_query(layer, query)
        return forward(attention, query, *rest, **named)

    return looked
