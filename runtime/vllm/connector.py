"""`KVSweepConnector`: vLLM's calls, handed on to the two halves. The class is made when it is first asked for."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kvsweep.runtime.vllm import counts, engine, selftest
from kvsweep.runtime.vllm.half import SchedulerHalf
from kvsweep.runtime.vllm.settings import ConnectorSettings
from kvsweep.runtime.vllm.start import open_half, rank_capabilities
from kvsweep.transports.vllm.memory import memory_of
from kvsweep.transports.vllm.messages import Ack, StepMeta, WorkerHandshake
from kvsweep.transports.vllm.worker import WorkerHalf

SUMMARY_STEPS = 64
"""Engine steps between two writings of the summary."""


def __getattr__(name: str) -> Any:
    """The connector's class, which needs vLLM's base class: made once, on demand."""
    if name != "KVSweepConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _connector_class()
    return made


def _connector_class() -> type:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

    class KVSweepConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
        """One object in the scheduler's process and one in each worker's; vLLM says which by `role`."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.settings = ConnectorSettings.load(vllm_config.kv_transfer_config.kv_connector_extra_config)
            selftest.refuse(selftest.differences(engine.describe(vllm_config, kv_cache_config)))
            selftest.refuse(engine.expected_names() + engine.expected_signatures(type(self)))
            self.layout = engine.layout(vllm_config, kv_cache_config)
            self.half: SchedulerHalf | None = None
            self.worker: WorkerHalf | None = None
            self._names = engine.layer_names(kv_cache_config)
            self._at = {name: at for at, name in enumerate(self._names)}
            self._ready = False
            self._probe: tuple[list[str], object] | None = None
            if role is KVConnectorRole.SCHEDULER:
                self.settings.expect_summary_folder()
                scheduler = vllm_config.scheduler_config
                self.core_settings = self.settings.core(requests=2 * scheduler.max_num_seqs + 1024)

        @property
        def requires_kv_delivery(self) -> bool:
            return False  # nothing is handed to another engine

        # ---- worker

        def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
            from vllm.distributed.parallel_state import get_tp_group

            config, settings, layout = self._vllm_config, self.settings, self.layout
            ranks = config.parallel_config.tensor_parallel_size
            blocks = self._kv_cache_config.num_blocks
            memory = memory_of(
                kv_caches,
                self._names,
                blocks=blocks,
                block_bytes=layout.block_bytes(0) // ranks,
                cpu_blocks=settings.cpu_tier(blocks),
                checksums=settings.checksums,
            )
            self.worker = WorkerHalf(
                memory,
                rank=get_tp_group().rank_in_group,
                process_epoch=time.time_ns(),
                block_size=layout.block_size,
                poison=settings.poison,
                faults=settings.faults,
                rebuild=engine.rebuild(config, self._kv_cache_config),
                scoring=engine.scoring(config, self._kv_cache_config) if settings.needs_scores else None,
            )
            if self.worker.scoring is not None:
                engine.watch_queries(config, self._names, self.worker.scoring)
            self.bind_connector_metadata(StepMeta(step=0))
            selftest.refuse(engine.substitution(self, self._names[0]))
            self.clear_connector_metadata()

        def get_handshake_metadata(self) -> WorkerHandshake | None:
            if self.worker is None:
                return None
            cpu_blocks = self.settings.cpu_tier(self._kv_cache_config.num_blocks)
            return WorkerHandshake(
                rank=self.worker.rank,
                process_epoch=self.worker.worker.process_epoch,
                capabilities=rank_capabilities(
                    self.layout,
                    ranks=self._vllm_config.parallel_config.tensor_parallel_size,
                    process_epoch=self.worker.worker.process_epoch,
                    cpu_blocks=cpu_blocks,
                ),
                self_test=selftest.report({"attention operator": "reads what wait_for_layer_load puts in place"}),
            )

        def handle_preemptions(self, kv_connector_metadata: Any) -> None:
            self._ready = False
            if self.worker is not None and isinstance(kv_connector_metadata, StepMeta):
                self.worker.begin(kv_connector_metadata)

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
            """Called after the model has run: what it reads was put in place before, by `handle_preemptions`."""

        def wait_for_layer_load(self, layer_name: str) -> None:
            if self._ready:
                return
            from vllm.forward_context import get_forward_context

            metadata = get_forward_context().attn_metadata
            if self._probe is not None:
                calls, given = self._probe
                calls.append("wait_for_layer_load")
                metadata[layer_name] = given
                return
            self._ready = True
            worker = self.worker
            if worker is None:
                return
            if not worker.has_begun(self._connector_metadata):
                selftest.refuse(["handle_preemptions: expected a call before the model runs, got none in this step"])
            worker.ask(metadata[layer_name])
            if worker.has_views:
                metadata.update(zip(self._names, worker.tables(metadata[layer_name]), strict=True))

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
            if self._probe is not None:
                self._probe[0].append("save_kv_layer")
            elif self.worker is not None and self.worker.scoring is not None:
                self.worker.note_layer(self._at[layer_name], kv_layer)

        def wait_for_save(self) -> None:
            """Nothing is under way: what is whole is stored before the next step."""

        def build_connector_worker_meta(self) -> Ack | None:
            return self.worker.finish() if self.worker is not None else None

        @contextlib.contextmanager
        def probing(self, calls: list[str], given: object) -> Iterator[None]:
            """The hooks of the attention operator only note that they were called, and put `given` in place."""
            self._probe = calls, given
            try:
                yield
            finally:
                self._probe = None

        # ---- scheduler

        def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
            import vllm

            manager = self._kv_cache_manager
            if manager is None:
                raise selftest.Unsupported(["bind_kv_cache_manager: expected a call before the handshake, got none"])
            scheduler, blocks = self._vllm_config.scheduler_config, self._kv_cache_config.num_blocks
            most = -(-self._vllm_config.model_config.max_model_len // self.layout.block_size)
            shakes = list(metadata.values())
            of_group = manager.coordinator.single_type_managers[0]
            selftest.refuse(
                selftest.missing_names(
                    "FullAttentionManager", list(vars(of_group)), ("req_to_blocks", "num_cached_block")
                )
            )
            self.half = open_half(
                self.settings,
                self.core_settings,
                self.layout,
                manager.block_pool,
                of_group.req_to_blocks,
                of_group.num_cached_block,
                handshakes=shakes,
                producer_epoch=time.time_ns(),
                aliases=min(scheduler.max_num_seqs * most, 4 * blocks),
                evidence={
                    "engine": f"vLLM {vllm.__version__}",
                    "model": self._vllm_config.model_config.model,
                    "settings": repr(self.settings),
                    "self_test": dict(shakes[0].self_test),
                },
            )

        def on_new_request(self, request: Any) -> None:
            if self.half is not None:
                self.half.on_new_request(request)

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            return 0, False

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            """Nothing was matched, so nothing was allocated for us."""

        def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
            if self.half is None:
                return StepMeta(step=0)
            return self.half.build(scheduler_output.num_scheduled_tokens)

        def update_connector_output(self, connector_output: Any) -> None:
            if self.half is None:
                return
            self.half.update(connector_output.kv_connector_worker_meta)
            if self.half.counts.steps % SUMMARY_STEPS == 0:
                self._write_summary()

        def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
            if self.half is not None:
                self.half.finish(request.request_id)
            return False, None  # what is still read or written keeps a reference of ours

        def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
            return self.request_finished(request, [])

        def has_pending_block_frees(self) -> bool:
            return self.half is not None and self.half.frees_soon()

        def has_pending_push_work(self) -> bool:
            if self.half is None:
                return False
            if self.half.pending():
                return True
            if self.half.rest():
                self._write_summary()
            return False

        def shutdown(self) -> None:
            if self.half is None:
                return
            try:
                self.half.close()
                self._write_summary()
            finally:
                self.half = None

        def _write_summary(self) -> None:
            if self.half is None or not self.settings.summary:
                return
            try:
                counts.write(self.settings.summary, self.half.summary())
            except OSError as error:  # a count that nobody can read ends no engine
                self.half.counts.refused[f"summary: {type(error).__name__}"] += 1

    KVSweepConnector.__qualname__ = KVSweepConnector.__name__ = "KVSweepConnector"
    KVSweepConnector.__module__ = __name__
    return KVSweepConnector
