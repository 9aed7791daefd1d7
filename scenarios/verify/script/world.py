"""The world of a scenario: layout, pools, links and limits, as a TOML table."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from kvsweep.ledger.layout import LayerLayout, Layout
from kvsweep.runtime.run_config import RunConfig
from kvsweep.runtime.settings import Settings

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Chance: TypeAlias = Annotated[float, Meta(ge=0.0, le=0.9)]
FIRST_EPOCH = 1
"""Process epoch that every rank and the producer begin with; a restart adds one."""


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parent of everything in a scenario file: a field that is not known is refused with its path."""


class Group(Part, frozen=True, kw_only=True):
    """One KV-cache group: layers that share one allocation. Layers are numbered group after group."""

    kind: Literal["full", "sliding"] = "full"  # full layers are selected; a sliding one sees a window
    layers: Annotated[int, Meta(ge=1, le=256)] = 2  # of the model, in this group
    window: Count = 0  # tokens that a sliding layer sees; 0 for full layers
    blocks: Count = 0  # device blocks of this group; 0: as many as `device_blocks` says


class Links(Part, frozen=True, kw_only=True):
    """How hostile every link to a rank is, drawn from the seed of the run."""

    duplicate: Chance = 0.0  # chance that a frame comes twice
    lose: Chance = 0.0  # chance that a frame never comes (the first of a connection always does)
    delay: Annotated[int, Meta(ge=0, le=1000)] = 0  # turns that a frame may be held, drawn for each


class ScenarioWorld(Part, frozen=True, kw_only=True):
    """Sizes that a run starts with. Virtual time counts in turns; a turn is a millisecond."""

    ranks: Annotated[int, Meta(ge=1, le=8)] = 2  # each holds one KV head
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 4  # tokens
    groups: Annotated[tuple[Group, ...], Meta(min_length=1, max_length=16)] = (Group(),)  # one full group of two layers
    device_blocks: Positive = 32  # of each group
    cpu_blocks: Positive = 64  # K: blocks of full KV
    cpu_copy_blocks: Count = 0  # N − K: destinations of CPU copies
    source: Literal["source_only", "copy"] = "source_only"  # name CPU blocks, or gather copies of them first
    tables: Literal["layer", "group"] = "layer"  # whether each layer reads a table of its own, or one serves a group
    union: bool = False  # group tables: keep the union of the layers' slots, labelled as another attention
    rows: Annotated[int, Meta(ge=2, le=8)] = 3  # table rows of a request
    open_steps: Positive = 64  # serving steps at a time
    deadline: Positive = 500  # turns until an operation is aborted
    staging_slots: Annotated[int, Meta(ge=1, le=64)] = 2  # of a rank
    staging_blocks: Positive = 64  # blocks that a slot holds
    kv: Literal["synthetic", "model"] = "synthetic"  # a function of (request, layer, token), or of a small seeded model
    links: Links = Links()  # of the ranks

    def layout(self) -> Layout:
        """The ledger's layout. Raises LayoutError naming the field."""
        layers: list[LayerLayout] = []
        for number, group in enumerate(self.groups):
            for _ in range(group.layers):
                layers.append(
                    LayerLayout(
                        layer=len(layers),
                        group=number,
                        kind=group.kind,
                        kv_heads=self.ranks,
                        head_dim=HEAD_DIM,
                        window_tokens=group.window,
                    )
                )
        return Layout.of(
            model_hash=f"scenario/{self.kv}", dtype="float32", block_size=self.block_size, layers=tuple(layers)
        )

    @property
    def bytes(self) -> int:
        """Memory of a run: KV on the devices and the CPU, and staging."""
        layers, block = sum(group.layers for group in self.groups), 2 * self.ranks * self.block_size * HEAD_DIM * 4
        device = sum(group.layers * (group.blocks or self.device_blocks) for group in self.groups)
        cpu = layers * (self.cpu_blocks + self.cpu_copy_blocks)
        return block * (device + cpu + self.ranks * self.staging_slots * self.staging_blocks)

    def run_config(self, layout: Layout) -> RunConfig:
        """What the driver is opened with."""
        return RunConfig(
            layout=layout,
            ranks=tuple((rank, FIRST_EPOCH) for rank in range(self.ranks)),
            producer_epoch=FIRST_EPOCH,
            device_blocks=tuple(group.blocks or self.device_blocks for group in self.groups),
            cpu_full_blocks=self.cpu_blocks,
            cpu_total_blocks=self.cpu_blocks + self.cpu_copy_blocks,
        )

    def settings(self, seed: int, url: str) -> Settings:
        """Settings of the run; a ledger file is written within each call, so that runs repeat exactly."""
        block = 2 * self.ranks * self.block_size * HEAD_DIM * 4
        return Settings.of(
            log={"url": url, "writer": "inline", "digest_every": 1_000_000},
            source={"kind": self.source, "allow_copy": self.source == "copy"},
            transfer={
                "deadline_s": self.deadline / 1000.0,
                "staging_slots": self.staging_slots,
                "staging_bytes": self.staging_slots * self.staging_blocks * block,
            },
            retain={"layer_tables": self.tables == "layer", "union": self.union, "table_rows": self.rows},
            limits={"open_steps": self.open_steps},
            kernels={"choice": "numpy"},
            seed=seed,
        )


HEAD_DIM = 2
"""Elements of a head: enough for a marker of request, layer and token in K and in V."""
