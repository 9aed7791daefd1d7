"""One vLLM engine in a process of its own: reads jobs as lines of JSON, writes each answer to the file that it names.

Started by scripts/test-vllm with vLLM's interpreter; the first line is an Engine, each further one a Batch.
"""

import math
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
import vllm
import vllm.version
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvsweep.scenarios import measure

# The installed package comes without these checks, which the checkout has.
measure.__path__.append(str(Path(__file__).resolve().parents[1] / "scenarios/measure"))

from kvsweep.scenarios.measure.vllm.job import BLOCK, NO_SECOND, Answer, Batch, Engine, Fault, Ran, Token

IDLE_STEPS = 2000  # after the last request; an engine that still works then is one that never ends


class Forcing(AdapterLogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Lets a request say only the tokens it was given. Logprobs are taken before, so they stay the model's own."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        tokens = (params.extra_args or {}).get("forced")
        if tokens is None:
            return None

        def force(so_far: list[int], logits: torch.Tensor) -> torch.Tensor:
            only = torch.full_like(logits, -math.inf)
            only[tokens[len(so_far)]] = 0.0
            return only

        return force


def start(engine: Engine) -> LLM:
    """The engine, on one core of the CPU build. Its own messages go to stderr."""
    transfer: dict[str, Any] = {}
    if engine.connector is not None:
        config: dict[str, Any] = {"kv_connector": "KVSweepConnector", "kv_role": engine.role}
        config |= {"kv_connector_extra_config": engine.connector} if engine.connector else {}
        config |= {"kv_connector_module_path": engine.module} if engine.module else {}
        transfer["kv_transfer_config"] = config
    if engine.version is not None:
        vllm.__version__ = vllm.version.__version__ = engine.version
    longest = engine.context if engine.chunked is None else engine.chunked
    return LLM(
        model=engine.model,
        dtype="float32",
        seed=0,
        tensor_parallel_size=engine.ranks,
        max_model_len=engine.context,
        block_size=BLOCK,
        num_gpu_blocks_override=engine.blocks,
        max_num_seqs=engine.requests,
        max_num_batched_tokens=longest,
        enable_chunked_prefill=engine.chunked is not None,
        enable_prefix_caching=engine.prefix_caching,
        enforce_eager=engine.eager,
        skip_tokenizer_init=not engine.tokenizer,
        disable_log_stats=False,
        max_logprobs=max(engine.logprobs or 0, 1),
        logits_processors=["vllm_child:Forcing"],
        **transfer,
    )


def preemptions(llm: LLM) -> int:
    """vLLM's own counter since the start."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def free_blocks(llm: LLM) -> int | None:
    """Free blocks of vLLM's pool, where the core is in this process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None:
        return None
    return int(core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def token_of(place: dict[int, Any], sampled: int) -> Token:
    """One position's logprobs: the sampled token's is always there, the best few are ranked."""
    best = sorted((one.rank, token, one.logprob) for token, one in place.items() if one.rank is not None)
    top = {token: logprob for _, token, logprob in best}
    gap = best[0][2] - best[1][2] if len(best) > 1 and best[1][0] == 2 else NO_SECOND
    return Token(id=sampled, logprob=place[sampled].logprob, first=best[0][1], gap=gap, top=top)


def run(llm: LLM, engine: Engine, batch: Batch, number: int) -> Ran:
    """Submit the batch and step the engine until it has nothing more to do."""
    core, names = llm.llm_engine, [f"batch{number}/{index}" for index in range(len(batch.prompts))]
    before, free_before, began = preemptions(llm), free_blocks(llm), time.perf_counter()
    done: dict[str, Any] = {}
    steps: list[tuple[int, float]] = []
    free: list[int] = []
    for index, (name, prompt) in enumerate(zip(names, batch.prompts, strict=True)):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=batch.tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=engine.logprobs,
            extra_args={"forced": batch.forced[index]} if batch.forced is not None else None,
        )
        core.add_request(name, TokensPrompt(prompt_token_ids=prompt), params)
    while core.has_unfinished_requests():
        at = time.perf_counter()
        outputs = core.step()
        steps.append((len(outputs), time.perf_counter() - at))
        free += [left] if (left := free_blocks(llm)) is not None else []
        for output in outputs:
            done[output.request_id] = output
            given_up = batch.abort.get(names.index(output.request_id), batch.tokens + 1)
            if not output.finished and len(output.outputs[0].token_ids) >= given_up:
                core.abort_request([output.request_id])
    seconds = time.perf_counter() - began
    idle = settle(core)
    outputs_of = [
        [token_of(place, token) for token, place in zip(one.token_ids, one.logprobs, strict=True)]
        if one.logprobs
        else []
        for one in (done[name].outputs[0] for name in names)
    ]
    return Ran(
        outputs=outputs_of,
        ended=[str(done[name].outputs[0].finish_reason or "abort") for name in names],
        preemptions=preemptions(llm) - before,
        free_before=free_before,
        free_after=free_blocks(llm),
        steps=steps,
        free=free,
        seconds=seconds,
        idle_steps=idle,
    )


def settle(engine: Any) -> int:
    """Step on while the core says that work is left, as its own loop would; returns how often that was.

    A connector may hold blocks of a finished request until its copies have ended.
    """
    core = getattr(engine.engine_core, "engine_core", None)
    if core is None:
        return 0
    for turn in range(IDLE_STEPS):
        if not core.scheduler.has_requests():
            return turn
        engine.step()
    return IDLE_STEPS


def main() -> int:
    answers = Path(sys.argv[1])
    llm: LLM | None = None
    engine: Engine | None = None
    for number, line in enumerate(sys.stdin):
        began = time.perf_counter()
        ran, where = None, "start" if engine is None else "batch"
        fault: Fault | None = None
        try:
            if llm is None or engine is None:
                engine = msgspec.json.decode(line, type=Engine)
                llm = start(engine)
            else:
                ran = run(llm, engine, msgspec.json.decode(line, type=Batch), number)
        except Exception as error:  # noqa: BLE001  # whatever vLLM raises is the answer
            fault = Fault(where="start" if where == "start" else "batch", type=type(error).__name__, message=str(error))
        seconds = time.perf_counter() - began
        written = answers / f"{number}.writing"
        written.write_bytes(msgspec.json.encode(Answer(ran=ran, fault=fault, seconds=seconds)))
        written.rename(answers / f"{number}.json")
        if fault is not None:
            return 1
    if llm is not None:
        llm.llm_engine.engine_core.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
