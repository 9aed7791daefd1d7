"""What ledger tests share: arbitrary events built from their definitions, and one real run that folds."""

import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.ledger.lives import EVERY_SNAPSHOT, Life, Make
from tests.ledger.small_run import LAYOUT, Writer, small_run

from kvsweep.ledger.events import Event
from kvsweep.ledger.ids import RequestKey, Rows, int32_bytes
from kvsweep.ledger.layout import Layout
from kvsweep.ledger.store.log import LogStore, QueueBounds, Rotation
from kvsweep.ledger.store.open import open_log

MakeEvent = Callable[..., Event]
WORDS = ("", "a-b-c", "@pool", "요청/7", "nul\0inside", "🙂 " * 9, "'); DROP TABLE log; --")


def arbitrary(annotation: Any, rng: np.random.Generator) -> Any:
    """A value of a field's type, as the encoding allows it; whether it makes sense is the fold's business."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        return int(rng.choice([0, 1, 127, 128, 65536, 2**31, 2**63 - 1]))
    if annotation is float:
        return float(rng.random())
    if annotation is str:
        return str(rng.choice(WORDS))
    if annotation is bytes:
        return int32_bytes(rng.integers(0, 2**31, size=rng.integers(0, 5)))
    if annotation is Layout:
        return LAYOUT
    if Rows in (annotation, origin):
        layers = sorted(rng.choice(40, size=rng.integers(0, 4), replace=False).tolist())
        return Rows.of({layer: rng.integers(0, 2**31, size=rng.integers(0, 40)) for layer in layers})
    if origin is Literal:
        return str(rng.choice(arguments))
    if origin in (typing.Union, types.UnionType):
        return None if rng.random() < 0.5 else arbitrary(arguments[0], rng)
    if origin is tuple and arguments[1:] == (...,):
        items = [arbitrary(arguments[0], rng) for _ in range(rng.integers(0, 4))]
        if arguments[0] == tuple[int, int]:
            items = [(rank, epoch) for rank, (_, epoch) in enumerate(items)]
        return tuple(items)
    if origin is tuple:
        return tuple(arbitrary(part, rng) for part in arguments)
    if annotation is RequestKey:
        return RequestKey(str(rng.choice(WORDS)), int(rng.integers(0, 2**40)))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation(**{name: arbitrary(part, rng) for name, part in get_type_hints(annotation).items()})
    raise TypeError(f"no arbitrary value of {annotation!r}")


@pytest.fixture(scope="session")
def make_event() -> MakeEvent:
    """(event type, generator, request=None, seq=None) -> an arbitrary event of that type."""

    def make(
        kind: type[Event], rng: np.random.Generator, request: RequestKey | None = None, seq: int | None = None
    ) -> Event:
        event: Event = arbitrary(kind, rng)
        return replace(event, request=request or event.request, seq=event.seq if seq is None else seq)

    return make


@pytest.fixture(scope="session")
def written() -> Writer:
    """A whole small run: its events, in order, and the state that was lived."""
    return small_run()


@pytest.fixture(params=["inline", "thread"])
def make_life(request: pytest.FixtureRequest, path: Path) -> Iterator[Make]:
    """(rotation) -> lives written to the ledger at `path`, inline and by a thread."""
    made: list[LogStore] = []

    def make(rotation: Rotation = EVERY_SNAPSHOT) -> Life:
        queue = QueueBounds() if request.param == "thread" else None
        made.append(open_log(f"sqlite:{path}", queue=queue, rotation=rotation))
        return Life(made[-1])

    yield make
    for log in made:
        log.close()
