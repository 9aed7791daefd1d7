"""Every exception of the project; kernels, which import nothing, keep their own two.

Fields come first, the message is one sentence with what was expected and what came.

`retry` says what a caller may do: "same_key" (ask again with the same idempotency key), "new_operation", or "never".
"""

from typing import ClassVar, Literal

Retry = Literal["same_key", "new_operation", "never"]


class KvsweepError(Exception):
    """Parent of all errors of the project."""

    retry: ClassVar[Retry] = "never"


class UsageError(KvsweepError, ValueError):
    """The caller passed something that cannot be meant."""


class SettingsError(UsageError):
    """A setting, scenario or option is not what its table allows."""

    def __init__(self, path: str, expected: str, got: str) -> None:
        self.path, self.expected, self.got = path, expected, got
        super().__init__(f"{path}: expected {expected}, got {got}")


class LayoutError(UsageError):
    """An array, layout or table does not have the shape, type or range that its docstring gives."""

    def __init__(self, argument: str, expected: str, got: str) -> None:
        self.argument, self.expected, self.got = argument, expected, got
        super().__init__(f"{argument}: expected {expected}, got {got}")


class Malformed(UsageError):
    """A message does not have the types that its declaration gives. `path` leads to the field, as `OpenTail.until`."""

    def __init__(self, path: str, expected: str, got: str) -> None:
        self.path, self.expected, self.got = path, expected, got
        super().__init__(f"{path}: expected {expected}, got {got}")


class NonFiniteScore(UsageError):
    """A block score is NaN or infinite."""

    def __init__(self, layer: int, block: int, value: float) -> None:
        self.layer, self.block, self.value = layer, block, value
        super().__init__(f"score of layer {layer}, block {block}: expected a finite number, got {value}")


class BudgetError(UsageError):
    """The budget does not hold the protected blocks and the settings say to refuse."""

    def __init__(self, budget_blocks: int, protected_blocks: int) -> None:
        self.budget_blocks, self.protected_blocks = budget_blocks, protected_blocks
        super().__init__(
            f"selection budget: expected at least {protected_blocks} blocks (sink + recent), got {budget_blocks}"
        )


class HandshakeError(KvsweepError):
    """Two sides do not hold the same contract. Names every differing field with both values."""

    def __init__(self, differences: dict[str, tuple[object, object]]) -> None:
        self.differences = differences
        listed = "; ".join(
            f"{field}: ours {ours!r}, theirs {theirs!r}" for field, (ours, theirs) in differences.items()
        )
        super().__init__(f"handshake refused, {len(differences)} field(s) differ: {listed}")


class Refused(KvsweepError):
    """A command or event is illegal in the present state. The state is untouched."""

    retry = "new_operation"

    def __init__(self, key: object, what: str, state: str, legal: tuple[str, ...], reason: str = "") -> None:
        self.key, self.what, self.state, self.legal, self.reason = key, what, state, legal, reason
        tail = f" ({reason})" if reason else ""
        super().__init__(f"{key}: {what} is illegal in {state}; legal here: {', '.join(legal) or 'nothing'}{tail}")


class SequenceConflict(KvsweepError):
    """An event is not the next one of its stream: somebody else wrote, or one is missing."""

    def __init__(self, key: object, expected: object, found: object) -> None:
        self.key, self.expected, self.found = key, expected, found
        super().__init__(f"{key}: expected sequence {expected}, found {found}")


class BrokenLaw(KvsweepError):
    """A law of the state does not hold: a bug. The coordinator stops."""

    def __init__(self, law: str, detail: str) -> None:
        self.law, self.detail = law, detail
        super().__init__(f"law '{law}' is broken: {detail}")


class Aborted(KvsweepError):
    """An operation ended without a commit; the old residency stands."""

    retry = "new_operation"

    def __init__(self, operation: object, reason: str) -> None:
        self.operation, self.reason = operation, reason
        super().__init__(f"{operation} was aborted: {reason}")


class Busy(KvsweepError):
    """A bounded queue is full."""

    retry = "same_key"

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit
        super().__init__(f"{what} is full: the limit is {limit}")


class PoolError(KvsweepError):
    """A block pool was asked for something it cannot do."""


class PoolExhausted(PoolError):
    """Not enough free blocks. The old residency is kept; try again when blocks return."""

    retry = "new_operation"

    def __init__(self, pool: str, wanted: int, free: int) -> None:
        self.pool, self.wanted, self.free = pool, wanted, free
        super().__init__(f"{pool}: wanted {wanted} blocks, {free} are free")


class DoubleFree(PoolError):
    """A block was released that is already free, or twice in one call."""

    def __init__(self, pool: str, block: int) -> None:
        self.pool, self.block = pool, block
        super().__init__(f"{pool}: block {block} was released while it is free")


class LogError(KvsweepError):
    """A ledger cannot be written or read."""


class Unencodable(LogError):
    """An event holds a value that no ledger takes: the fault of who said it, not of the store, which goes on."""


class LogCorrupt(LogError):
    """The stored bytes at a position are not what was written."""

    def __init__(self, position: int, detail: str) -> None:
        self.position, self.detail = position, detail
        super().__init__(f"ledger is corrupt at position {position}: {detail}")


class UnknownSchema(LogError):
    """The ledger was written by another version."""

    def __init__(self, what: str, found: int, known: int) -> None:
        self.what, self.found, self.known = what, found, known
        super().__init__(f"ledger {what}: expected {known}, which this version reads, got {found}")


class DigestMismatch(LogError):
    """Replay gives another state than the one that was recorded while it ran."""

    def __init__(self, position: int, recorded: str, replayed: str) -> None:
        self.position, self.recorded, self.replayed = position, recorded, replayed
        super().__init__(f"digest at position {position}: recorded {recorded}, replayed {replayed}")


class NotSettled(KvsweepError):
    """Something is still held when it should have drained."""

    def __init__(self, pending: tuple[str, ...]) -> None:
        self.pending = pending
        super().__init__(f"not settled: {'; '.join(pending)}")
