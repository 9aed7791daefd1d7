"""That the folder written for vLLM is the demo's model: vLLM says greedily what transformers says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from kvsweep.scenarios.measure.vllm.job import Batch
from kvsweep.scenarios.measure.vllm.judge import MARGIN
from kvsweep.scenarios.measure.vllm.kit import Kit, prompts

TOKENS: Final = 32


def check_model(kit: Kit) -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Four prompts, greedily, in vLLM; then transformers over the same tokens, all places at once."""
    given = prompts(kit.tokens, count=4, shortest=24, longest=160)
    engine = kit.engine("model-stock", blocks=64, context=256)
    (ran,) = kit.run(engine, Batch(prompts=given, tokens=TOKENS))
    reference = oracle(kit.model)
    faults = []
    equal = excused = 0
    largest = 0.0
    for index, (prompt, output) in enumerate(zip(given, ran.outputs, strict=True)):
        said = [token.id for token in output]
        logprobs = reference([*prompt, *said])[len(prompt) - 1 : -1]
        best = logprobs.topk(2, dim=-1)
        for place, token in enumerate(output):
            first, gap = int(best.indices[place, 0]), float(best.values[place, 0] - best.values[place, 1])
            largest = max(largest, abs(float(logprobs[place, token.id]) - token.logprob))
            if first == token.id:
                equal += 1
            elif gap <= MARGIN:
                excused += 1
            else:
                faults.append(
                    f"prompt {index}, token {place}: transformers says {first}, vLLM {token.id}, gap {gap:.2g}"
                )
    if largest > MARGIN:
        faults.append(f"logprobs differ from transformers' by up to {largest:.2g}")
    figures = {"equal": equal, "excused": excused, "largest_logprob_delta": largest}
    more = f", {excused} excused" if excused else ""
    return (
        faults,
        figures,
        [
            ("greedy tokens equal to transformers'", f"{equal} of {4 * TOKENS}{more}"),
            ("largest difference of a logprob", f"{largest:.1e}"),
        ],
    )


def oracle(folder: Path) -> Callable[[list[int]], torch.Tensor]:
    """Tokens -> log-probabilities [n, vocabulary], by the class that the folder itself names."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder)

    def logprobs(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(torch.tensor(tokens)[None], use_cache=False).logits[0]
        return logits.log_softmax(-1)

    return logprobs
