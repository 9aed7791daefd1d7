"""What a demo found: the closing figures, counted or measured when everything has settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from kvsweep.runtime.driver import Driver
from kvsweep.scenarios.demo.bundle import Bundle
from kvsweep.scenarios.demo.fleet import Fleet
from kvsweep.scenarios.demo.options import DemoOptions
from kvsweep.scenarios.demo.stack import Stack, kernels_of
from kvsweep.scenarios.demo.weather import Storm

NOT_RUN = ("shared-memory race",)
METRICS = (
    "cpu_gather_bytes",
    "cpu_destination_blocks",
    "h2d_bytes",
    "unpack_bytes",
    "d2h_bytes",
    "resident_moved_bytes",
    "packed_bytes",
    "table_updates",
    "metadata_bytes",
    "plan_s",
    "wait_s",
)


class DemoResult(Struct, frozen=True, kw_only=True):
    """The closing figures; every one was counted or measured in this run."""

    tokens: dict[str, list[int]]  # by request
    text: str  # of the first request
    lossless: bool
    first_difference: str | None  # request and index of the first token that differs from plain decoding
    accepted_per_verify: float
    verifies: int
    rounds: int
    metrics: dict[str, int | float]
    counted: dict[str, int]  # by the memories and the producer themselves, apart from what operations reported
    physical_blocks_released: int
    remap: dict[str, int]
    owned_blocks_max: int
    owned_blocks: int  # at the end of decoding
    live_blocks: int  # largest per-layer count of the last view
    vacant_areas: int
    device_blocks: list[int]
    adopted_areas: int
    uploaded_areas: int
    model: dict[str, Any]
    source: str  # of the text
    seed: int
    ledger: str
    events: int
    digest: str
    seconds: dict[str, float]  # measured; not part of the digest
    kernels: str  # what copied, ranked and planned, and on which device; the digest is the same with any
    not_run: list[str]
    requests: int
    ranks: int
    shared_blocks: int  # prompt blocks that were attached instead of computed
    preemptions: int
    refused: dict[str, int]  # rounds that ended early, by reason
    storm: dict[str, int]  # what the chaos did, counted
    held_at_end: dict[str, int]  # leases, fences, quarantine, shared; all 0 in a sound run
    free_at_end: list[int]  # device blocks a group


@dataclass(frozen=True)
class Run:
    """What is looked at when everything has settled."""

    stack: Stack
    fleet: Fleet
    storm: Storm | None
    parts: str  # kernels and device, in words
    on_gpu: bool


def model_of(bundle: Bundle) -> dict[str, Any]:
    config = bundle.model.config
    return {
        "name": config.name,
        "file": bundle.path.name if bundle.path else None,
        "sha256": bundle.sha256,
        "layers": len(config.layers),
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "dtype": config.dtype,
    }


def _counted(stack: Stack) -> dict[str, int]:
    """Under the metrics' names: what went through each memory, whatever operation it was for."""
    shards = [shard.traffic for shard in stack.producer.shards]
    devices = [node.traffic for node in stack.nodes]
    return {
        "cpu_gather_bytes": stack.producer.cpu_gather_bytes,
        "cpu_destination_blocks": stack.producer.cpu_destination_blocks,
        "h2d_bytes": sum(shard.read_bytes for shard in shards),
        "unpack_bytes": sum(device.written_bytes for device in devices),
        "d2h_bytes": sum(device.read_bytes for device in devices),
        "resident_moved_bytes": sum(device.moved_bytes for device in devices),
    }


def _held(driver: Driver) -> dict[str, int]:
    """What is held when everything should be free again, by what it is."""
    state = driver.state
    kinds = [holder.kind for holders in state.ownership.held.values() for holder in holders]
    settling = sum(len(request.settling) for request in state.requests.values())
    return {
        "leases": kinds.count("src"),
        "fences": kinds.count("fence"),
        "quarantine": settling,
        "shared": len(state.pool.prefixes),
    }


def not_run(options: DemoOptions) -> list[str]:
    """What this run leaves unproven (J2), whatever kernels and device it has: those stand beside the digest."""
    left = list(NOT_RUN)
    if options.ranks == 1:
        left.append("several ranks")
    if options.requests == 1:
        left.append("several requests")
    if options.chaos is None:
        left.append("faults (delayed, duplicated or failed messages)")
    return left


def result_of(
    options: DemoOptions,
    bundle: Bundle,
    source: str,
    driver: Driver,
    run: Run,
    plain: dict[str, list[int]],
    ledger: str,
    seconds: dict[str, float],
) -> DemoResult:
    metrics, pool, kernels = driver.metrics, driver.state.pool, kernels_of(driver.settings)
    sessions = [member.session for member in run.fleet.members]
    progress = [session.progress for session in sessions]
    verifies = sum(one.verifies for one in progress)
    tokens = {session.key.request_id: session.emitted for session in sessions}
    differs = [
        f"{name}, token {at}"
        for name, ours in tokens.items()
        for at, (one, other) in enumerate(zip(ours, plain[name], strict=True))
        if one != other
    ]
    refused: dict[str, int] = {}
    for one in progress:
        for reason, count in one.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    return DemoResult(
        tokens=tokens,
        text=bundle.tokenizer.decode(sessions[0].emitted),
        lossless=not differs,
        first_difference=differs[0] if differs else None,
        accepted_per_verify=(sum(one.accepted for one in progress) - verifies) / verifies if verifies else 0.0,
        verifies=verifies,
        rounds=sum(one.rounds for one in progress),
        metrics={name: getattr(metrics, name) for name in METRICS},
        counted=_counted(run.stack),
        physical_blocks_released=metrics.physical_blocks_released,
        remap=metrics.remap,
        owned_blocks_max=max(one.owned_blocks_max for one in progress),
        owned_blocks=sum(one.owned_blocks for one in progress),
        live_blocks=max(one.live_blocks for one in progress),
        vacant_areas=sum(one.vacant_areas for one in progress),
        device_blocks=list(pool.run.device_blocks) if pool.run else [],
        adopted_areas=metrics.adopted_areas,
        uploaded_areas=metrics.uploaded_areas,
        model=model_of(bundle),
        source=source,
        seed=options.seed,
        ledger=ledger.partition(":")[2] or ledger,
        events=driver.events,
        digest=driver.final_digest,
        seconds=seconds,
        kernels=run.parts,
        not_run=[
            *not_run(options),
            *(["native extension"] if kernels.name == "numpy" else []),
            *([] if run.on_gpu else ["GPU transfer"]),
        ],
        requests=options.requests,
        ranks=options.ranks,
        shared_blocks=sum(one.shared_blocks for one in progress),
        preemptions=sum(one.preemptions for one in progress),
        refused=refused,
        storm=dict(run.storm.done) if run.storm else {},
        held_at_end=_held(driver),
        free_at_end=list(driver.pools.device.free),
    )
