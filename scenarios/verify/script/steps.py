"""Steps: what the serving loop, the machines and forged voices do, one after the other."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from kvsweep.ledger.events import LaneName
from kvsweep.scenarios.verify.script.address import Moment, Number
from kvsweep.scenarios.verify.script.world import Count, Part, Positive

BlockId: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Blocks: TypeAlias = tuple[BlockId, ...]
ByLayer: TypeAlias = Blocks | dict[int, Blocks]
"""One list for every active layer, or a list for each active layer by its number."""

Offset: TypeAlias = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Step(Part, frozen=True, kw_only=True, tag_field="do", tag=_tag):
    """Parent of all steps.

    refused  a part of the reason for which this must be refused; "" where it must not be
    """

    refused: str = ""


class _Lasting(_Step, frozen=True, kw_only=True):
    """A step that takes time. Without `wait` the script goes on at once; `await` of its name waits for it later.

    aborted  a part of the reason for which it must be aborted; "" where it must commit
    """

    name: str = ""
    wait: bool = True
    aborted: str = ""


class Open(_Lasting, frozen=True, kw_only=True):
    """A new life of this id. Its first tokens are written by a serving step, sealed, and stored on the CPU.

    registered  the producer holds them from the start instead: nothing is written on the device
    """

    request: str = "a"
    blocks: Count = 0
    tokens: Count = 0  # beside the whole blocks
    registered: bool = False


class Write(_Lasting, frozen=True, kw_only=True):
    """A serving step writes more tokens; whole blocks are then sealed and stored.

    seal  false: nothing is confirmed yet
    """

    request: str = "a"
    blocks: Count = 0
    tokens: Count = 0
    seal: bool = True


class Seal(_Lasting, frozen=True, kw_only=True):
    """All that was written is confirmed: whole blocks are sealed and stored."""

    request: str = "a"


class Register(_Step, frozen=True, kw_only=True):
    """The producer says that it holds blocks of the request: those that a restart of it made stale.

    owner  another request, whose CPU blocks are named instead
    """

    request: str = "a"
    owner: str | None = None


class Select(_Step, frozen=True, kw_only=True):
    """Choose blocks by seeded scores. The next upload without `want` and retain without `keep` take this choice.

    nan  (layer, block) whose score is not a number
    """

    request: str = "a"
    budget: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.5
    sink: Count = 1
    recent: Count = 1
    shared: bool = False
    nan: tuple[Number, Number] | None = None


class Upload(_Lasting, frozen=True, kw_only=True):
    """Bring what the selection lacks to the device.

    want      logical blocks; without it: the last choice of the request
    tail      other candidates, best first; a shared table is padded with them
    key       idempotency key; without it: a new one
    revision  selection revision; without it: the next one
    whole     whole blocks that the selection speaks of; without it: all that the CPU holds
    """

    request: str = "a"
    want: ByLayer | None = None
    tail: ByLayer = ()
    key: str = ""
    revision: Count | None = None
    whole: Count | None = None


class Retain(_Lasting, frozen=True, kw_only=True):
    """Keep these logical blocks where they are resident, and adopt those that stand clean in the tail.

    keep          logical blocks; without it: those of the last upload or choice
    slots         slots of the current view, instead of `keep`
    map_revision  added to the current map revision
    """

    request: str = "a"
    keep: ByLayer | None = None
    slots: ByLayer | None = None
    adopt: bool = True
    pack: bool = False
    key: str = ""
    map_revision: Offset = 0


class Round(_Lasting, frozen=True, kw_only=True):
    """One upload, then one retain, of the same blocks."""

    request: str = "a"
    want: ByLayer | None = None


class BeginStep(_Step, frozen=True, kw_only=True):
    """A serving step is handed the current generation of each request. It reads until it ends, and is checked then too.

    captured  it reads through the table rows as they were at its beginning, like a captured graph that is replayed
    """

    name: str = "step"
    requests: tuple[str, ...] = ("a",)
    captured: bool = False


class EndStep(_Step, frozen=True, kw_only=True):
    """The named serving step has ended on every rank."""

    of: str = "step"


class Preempt(_Step, frozen=True, kw_only=True):
    """The request loses its residency."""

    request: str = "a"


class Resume(_Step, frozen=True, kw_only=True):
    """It runs again, without a view until an upload commits."""

    request: str = "a"


class Finish(_Step, frozen=True, kw_only=True):
    """No more tokens: everything that it holds drains."""

    request: str = "a"


class Abort(_Step, frozen=True, kw_only=True):
    """The caller gives up the open operation of a lane."""

    request: str = "a"
    lane: LaneName = "upload"


class Retry(_Lasting, frozen=True, kw_only=True):
    """Ask exactly what a named upload or retain asked, under the same idempotency key.

    fresh  under a new key: a new attempt
    """

    of: str
    fresh: bool = False


class Publish(_Step, frozen=True, kw_only=True):
    """Share the first whole blocks of the request, if they stand clean and whole in its tail."""

    request: str = "a"
    blocks: Positive = 1
    prefix: str = "prefix"  # opaque name of what the tokens say


class Attach(_Step, frozen=True, kw_only=True):
    """Refer to shared blocks, as far as they are there."""

    request: str = "b"
    blocks: Positive = 1
    prefix: str = "prefix"


class Evict(_Step, frozen=True, kw_only=True):
    """The cache gives up its oldest references."""

    blocks: Positive = 1


class KillRank(_Step, frozen=True, kw_only=True):
    """The rank's process ends, and nobody has noticed."""

    rank: Number = 0


class LoseRank(_Step, frozen=True, kw_only=True):
    """The rank's process ends, and the coordinator knows."""

    rank: Number = 0


class RestartRank(_Step, frozen=True, kw_only=True):
    """A new process of the rank begins with empty memory; its predecessor is over."""

    rank: Number = 0


class RestartProducer(_Step, frozen=True, kw_only=True):
    """A new producer process over the same CPU memory.

    register  it names its blocks again at once; without it they stay stale until `register`
    """

    register: bool = True


class RestartCoordinator(_Step, frozen=True, kw_only=True):
    """The coordinator's process ends at once, and every rank's with it; a new one goes on with its ledger.

    The producer lives on. Requests that ran are preempted, and open serving steps are over.
    """


class Say(_Step, frozen=True, kw_only=True):
    """Somebody sends a rank's report on a named step's operation. Numbers are added to those of the true report.

    verdict  applied, aborts, settles, duplicate, stale, future or conflict; "" where any will do
    """

    of: str
    rank: Number = 0
    outcome: str = "completed"
    operation: Offset = 0
    process_epoch: Offset = 0
    map_revision: Offset = 0
    pool_generation: Offset = 0
    life: Offset = 0  # request epoch
    verdict: Literal["", "accepted", "duplicate", "stale", "future", "conflict"] = ""


class Await(_Step, frozen=True, kw_only=True):
    """Wait for the end of a step that was started without waiting."""

    of: str


class Wait(_Step, frozen=True, kw_only=True):
    """Let time pass: turns, or until an event has happened, or until nothing is open, settling or fenced."""

    turns: Count = 0
    until: Moment | None = None
    settled: bool = False


Step: TypeAlias = (
    Open | Write | Seal | Register | Select | Upload | Retain | Round | BeginStep | EndStep | Preempt | Resume
    | Finish | Abort | Retry | Publish | Attach | Evict | KillRank | LoseRank | RestartRank | RestartProducer
    | RestartCoordinator | Say
    | Await | Wait
)  # fmt: skip
Lasting: TypeAlias = Open | Write | Seal | Upload | Retain | Round | Retry
