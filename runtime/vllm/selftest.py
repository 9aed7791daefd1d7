"""What is checked before anything runs: that this vLLM and this model are what the connector was built for.

Each check gives one sentence that names what was expected and what came. Plain values go in, so that all of it is
tested without vLLM; `engine.py` reads them from vLLM.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kvsweep.ledger.errors import KvsweepError

VERSION = "0.32."
"""vLLM's minor version that was tested. Another one is refused: what is relied on is not all documented there."""


class Unsupported(KvsweepError):
    """The engine differs from what the connector was built for; the message says in what."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(f"KVSweepConnector cannot serve this engine: {'; '.join(differences)}")


class Engine(Struct, frozen=True, kw_only=True):
    """What of vLLM's configuration matters, as plain values."""

    version: str
    platform: str  # "cpu"
    kv_role: str
    groups: tuple[str, ...]  # name of each KV-cache group's spec class
    dtype: str  # of the KV cache: "float32" or "bfloat16"
    cache_dtype: str  # "auto"
    sliding_window: int | None = None
    alibi: bool = False
    mla: bool = False
    mm_prefix: bool = False
    speculative: bool = False
    async_scheduling: bool = False
    pipeline: int = 1
    data: int = 1
    decode_context: int = 1
    prefill_context: int = 1
    v2_runner: bool = False
    kv_sharing: bool = False
    disaggregated_blocks: int = 1  # kernel blocks in one block of the pool


def differences(engine: Engine) -> list[str]:
    """In what the engine differs from what is supported; empty where it does not."""
    found = []
    if not engine.version.startswith(VERSION):
        found.append(f"vLLM: expected version {VERSION}x, which was tested, got {engine.version}")
    if engine.groups != ("FullAttentionSpec",):
        expected = "one KV-cache group of full attention (FullAttentionSpec)"
        found.append(f"model: expected {expected}, got {list(engine.groups)}")
    if engine.sliding_window is not None:
        found.append(f"model: expected no sliding window, got one of {engine.sliding_window} tokens")
    if engine.dtype not in ("float32", "bfloat16"):
        found.append(f"dtype: expected float32 or bfloat16, got {engine.dtype}")
    if engine.cache_dtype != "auto":
        found.append(f"kv_cache_dtype: expected auto, got {engine.cache_dtype}")
    wrong: tuple[tuple[str, object, object], ...] = (
        ("platform", "cpu", engine.platform),
        ("kv_role", "kv_both", engine.kv_role),
        ("model with ALiBi", False, engine.alibi),
        ("model with MLA", False, engine.mla),
        ("model with bidirectional prefixes", False, engine.mm_prefix),
        ("layers that share another layer's KV cache", False, engine.kv_sharing),
        ("speculative decoding", False, engine.speculative),
        ("async_scheduling", False, engine.async_scheduling),
        ("pipeline_parallel_size", 1, engine.pipeline),
        ("data_parallel_size", 1, engine.data),
        ("decode_context_parallel_size", 1, engine.decode_context),
        ("prefill_context_parallel_size", 1, engine.prefill_context),
        ("V2 model runner", False, engine.v2_runner),
        ("kernel blocks in a block", 1, engine.disaggregated_blocks),
    )
    return found + [f"{name}: expected {want}, got {got}" for name, want, got in wrong if want != got]


def missing_names(what: str, has: Sequence[str], needs: Sequence[str]) -> list[str]:
    """One sentence where names that are relied on are not there."""
    gone = [name for name in needs if name not in has]
    return [f"{what}: expected {', '.join(gone)}, got none of that name"] if gone else []


def wrong_order(what: str, expected: Sequence[str], got: Sequence[str]) -> list[str]:
    """One sentence where hooks were not called in the order that is relied on."""
    return [] if list(expected) == list(got) else [f"{what}: expected the order {list(expected)}, got {list(got)}"]


def refuse(found: Sequence[str]) -> None:
    """Raise Unsupported with every sentence, if there is one."""
    if found:
        raise Unsupported(found)


def report(checks: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Checks that held, with what was seen, as they travel in the handshake."""
    return tuple(sorted(checks.items()))
