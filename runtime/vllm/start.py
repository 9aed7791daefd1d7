"""Opening the coordinator inside vLLM: the layout from vLLM's own description, pool sizes, ledger, handshake."""

import json
from collections.abc import Mapping, MutableMapping, Sequence

from kvsweep.ledger.errors import LogError
from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.ledger.messages import Acknowledge, Acknowledged, Finish, PublishKeepMap, Release
from kvsweep.runtime.driver import Driver
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings
from kvsweep.runtime.vllm.half import SchedulerHalf
from kvsweep.runtime.vllm.pools import EngineBlock, EngineBlockPool, EnginePools
from kvsweep.runtime.vllm.settings import ConnectorSettings
from kvsweep.transports.handshake import Capabilities, capabilities
from kvsweep.transports.vllm.messages import WorkerHandshake


def layout_of(*, model_hash: str, dtype: str, block_size: int, layers: int, kv_heads: int, head_dim: int) -> Layout:
    """All ranks together. kv_heads of all of them; one group. Raises LayoutError naming the field."""
    return Layout.of(
        model_hash=model_hash,
        dtype=dtype,
        block_size=block_size,
        layers=tuple(
            LayerLayout(layer=n, group=0, kind="full", kv_heads=kv_heads, head_dim=head_dim) for n in range(layers)
        ),
    )


def rank_capabilities(
    layout: Layout, *, ranks: int, process_epoch: int, cpu_blocks: int, role: str = "rank"
) -> Capabilities:
    """What a rank shows, and what it is held against (D4)."""
    return capabilities(
        layout,
        role=role,
        selection_unit="block",
        source_kinds=("source_only",),
        tp_size=ranks,
        process_epoch=process_epoch,
        full_blocks=cpu_blocks,
        total_blocks=cpu_blocks,
    )


def open_half(
    settings: ConnectorSettings,
    core: Settings,
    layout: Layout,
    engine: EngineBlockPool,
    tables: Mapping[str, list[EngineBlock]],
    hashed: MutableMapping[str, int],
    *,
    handshakes: Sequence[WorkerHandshake],
    producer_epoch: int,
    aliases: int,
    evidence: Mapping[str, object],
) -> SchedulerHalf:
    """Open the ledger, agree with every rank, and take over vLLM's pool.

    tables, hashed  vLLM's own, see SchedulerHalf
    handshakes  one a rank
    aliases     blocks that may be lent a second time at once
    A ledger of an earlier engine goes on: its requests are over, and so is what it held.
    Raises HandshakeError naming each difference, LogError where the ledger cannot go on in this engine.
    """
    cpu_blocks = settings.cpu_tier(engine.num_gpu_blocks)
    config = RunConfig(
        layout=layout,
        ranks=tuple(sorted((one.rank, one.process_epoch) for one in handshakes)),
        producer_epoch=producer_epoch,
        device_blocks=(engine.num_gpu_blocks + aliases,),
        cpu_full_blocks=cpu_blocks,
        cpu_total_blocks=cpu_blocks,
    )
    driver = Driver.open(core, config, evidence=json.dumps(dict(evidence), sort_keys=True))
    try:
        ours = rank_capabilities(
            layout, ranks=len(handshakes), process_epoch=producer_epoch, cpu_blocks=cpu_blocks, role="producer"
        )
        driver.agree(ours, [one.capabilities for one in sorted(handshakes, key=lambda one: one.rank)])
        _end_earlier_lives(driver)
        pools = EnginePools(layout, engine, driver.pools.cpu, aliases=aliases, headroom=settings.headroom)
        driver.pools = pools
        return SchedulerHalf(settings, driver, pools, tables, hashed)
    except BaseException:
        driver.log.close()
        raise


def _end_earlier_lives(driver: Driver) -> None:
    """Requests of an earlier engine: what they held went with its memory, and their ids mean nothing to this one."""
    for request in driver.state.requests.values():
        if request.life not in ("CLOSED", "FINISHING"):
            driver.handle(Finish(request=request.key))
    while True:
        driver.log.flush()
        effects = driver.poll()
        if not effects:
            break
        for effect in effects:
            if isinstance(effect, Release):
                driver.release(effect)
            elif isinstance(effect, Acknowledge | PublishKeepMap):
                epoch = driver.state.pool.producer_epoch
                driver.handle(Acknowledged(operation=effect.operation, process_epoch=epoch))
    left = [request.key.request_id for request in driver.state.requests.values() if request.life != "CLOSED"]
    if left:
        raise LogError(f"requests of an earlier engine that could not be closed: {left}")
