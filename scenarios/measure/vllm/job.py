"""What a child process with a vLLM engine is told and what it answers: one JSON object each."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

NO_SECOND = 1e9  # a gap; JSON has no infinity
BLOCK = 32  # tokens; the smallest that vLLM's CPU attention takes


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. `connector` is the extra config of ours, None for an engine without any connector."""

    name: str
    model: str
    ranks: int = 1
    prefix_caching: bool = False
    chunked: int | None = None  # tokens a step when prefill is split; None: a prompt is one step
    eager: bool = True
    blocks: int = 1024  # of vLLM's pool, its null block included
    context: int = 2048  # tokens of a request at most
    requests: int = 16  # running at a time
    connector: dict[str, Any] | None = None
    module: str | None = None  # where the connector's class is, when the entry point is not installed
    logprobs: int | None = 2  # of each token, the sampled one's apart; None: not asked for, as serving mostly does
    multiprocess: bool = False  # the engine core in a process of its own, as a server has it
    tokenizer: bool = True
    role: str = "kv_both"
    version: str | None = None  # what vLLM shall say that it is, to see another one refused


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that are submitted at once. `forced` gives each request's tokens; without it the model decides."""

    prompts: list[list[int]]
    tokens: int  # of each request
    forced: list[list[int]] | None = None
    abort: dict[int, int] = {}  # request: after so many of its tokens


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One token of one request, and the model's own best two at its place, before anything was forced."""

    id: int
    logprob: float
    first: int
    gap: float  # between the best two, in nats; NO_SECOND where one was given
    top: dict[int, float]  # logprobs of the best few


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch left behind."""

    outputs: list[list[Token]]
    ended: list[str]  # finish reason of each request, "abort" for one that we ended
    preemptions: int  # vLLM's own counter
    free_before: int | None  # blocks in vLLM's pool; None where the core is in another process
    free_after: int | None
    steps: list[tuple[int, float]]  # requests that got a token, seconds
    free: list[int] = []  # blocks in vLLM's pool after each step; empty where the core is in another process
    seconds: float
    idle_steps: int  # steps after the last request had ended, until the engine had nothing more to do


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The engine did not start, or a batch ended in an exception."""

    where: Literal["start", "batch"]
    type: str
    message: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a child writes for each line it was sent: one of the two."""

    ran: Ran | None = None
    fault: Fault | None = None
    seconds: float = 0.0  # of the start, for the first answer
