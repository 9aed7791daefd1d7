"""The fold, compiled, as ledger/native/fold defines it: see kvsweep.ledger.folding.

A machine is one state that is changed in place. What it does not take, because it is illegal or of a kind that is left
to the reference, leaves it as it was.
"""

from collections.abc import Iterable
from typing import Any

class Machine:
    # The state, as kvsweep.ledger.store.snapshot.state_bytes gives it.
    def state_bytes(self) -> bytes: ...

    # Whether the event of this body was taken.
    def apply(self, body: bytes, /) -> bool: ...

    # Events from `start` on, up to `stop` or before the first that is not taken or has the tag `pause`; `bodies` is an
    # array of them. Returns where it ended.
    def feed(self, bodies: bytes, start: int, stop: int, pause: int = -1) -> int: ...

# A machine with this state; None where it takes no such state, as that of a pool which is not configured.
def machine_of(state: bytes, /) -> Machine | None: ...

# Whether the machine reads this body, whatever it would say to the event.
def readable(body: bytes, /) -> bool: ...

# machine -> (state, tag of an event) -> state: kvsweep.ledger.phases.
def tables() -> dict[str, dict[tuple[str, int], str]]: ...

# Decides ordinary words on a machine's state: see kvsweep.runtime.core.compiled_core. `types` are what it reads and
# makes, by name; `steps` are kvsweep.runtime.core.steps.OpenSteps.
class Core:
    def __init__(self, machine: Machine, types: dict[str, type], steps: object, options: dict[str, Any], /) -> None: ...

    # A turn, which is part of the machine's state already; None where Python has to decide.
    def handle(self, message: object, /) -> Any: ...
    def end_step(self, requests: tuple[object, ...], /) -> Any: ...

    # What a step reads of a request; None where it may not begin.
    def handed_out(self, request: object, /) -> Any: ...

    # The last turn is in the log.
    def adopt(self) -> None: ...

    # Whether a turn was given up halfway: the machine's state is of no use.
    def torn(self) -> bool: ...

    # The machine's state as Python has it; `before` is what this gave last, or what the machine was loaded with.
    def state(self, before: Any, /) -> Any: ...

    # Device blocks by group, and CPU blocks, that anybody holds: a byte each, 0 or 1.
    def taken(self) -> tuple[tuple[bytes, ...], bytes]: ...

    # Whether words decided here have taken or freed any since it was last asked, or the machine was fed.
    def moved(self) -> bool: ...

    # Lowest id of an operation that is open or settles, `number` where there is none below it.
    def floor(self, number: int, /) -> int: ...

    # The machine was fed with events of these requests.
    def fed(self, requests: Iterable[object], /) -> None: ...
