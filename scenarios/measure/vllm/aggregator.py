"""Two reports of one rank: what vLLM's own aggregator makes of them, and what becomes of ours on the same way."""

from __future__ import annotations

from typing import Any, Final

from kvsweep.transports.vllm.messages import Ack

RANKS: Final = 2


def check_aggregator() -> tuple[list[str], dict[str, Any], list[tuple[str, str]]]:
    """Rank 0 says twice that a request has ended, rank 1 says nothing: vLLM counts reports, ours keep names.

    The first is no fault of this check: it shows why no request id of ours ever goes that way.
    """
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    def step(rank_0: KVConnectorOutput, rank_1: KVConnectorOutput) -> Any:
        outputs = [
            ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=one) for one in (rank_0, rank_1)
        ]
        return aggregator.aggregate(outputs).kv_connector_output

    aggregator = KVOutputAggregator(expected_finished_count=RANKS)
    finished = [
        bool(step(KVConnectorOutput(finished_recving={"r"}), KVConnectorOutput()).finished_recving) for _ in range(2)
    ]
    reports = [("a report", 0), ("a report", 0)], [("a report", 1)]
    acks = [
        KVConnectorOutput(kv_connector_worker_meta=Ack(steps=((rank, 1),), completions=tuple(said)))
        for rank, said in enumerate(reports)
    ]
    joined = step(*acks).kv_connector_worker_meta
    faults = []
    if list(joined.completions) != [*reports[0], *reports[1]] or joined.steps != ((0, 1), (1, 1)):
        faults.append(f"a step's reports: expected every one with its rank, got {joined}")
    ended = "finished after 2 reports of rank 0" if finished[1] else "waits for rank 1"
    rows = [
        ("vLLM's aggregator, 2 ranks, rank 0 reports twice", ended),
        ("our reports on the same way", f"{len(joined.completions)} of 3, with their ranks"),
    ]
    return faults, {"stock_finished": finished}, rows
