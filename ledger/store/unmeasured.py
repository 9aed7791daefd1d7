"""What a digest does not see of an event: what a clock measured, what did the work, and fields that say nothing yet."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from kvsweep.ledger.events import Event, Implementation, Measured, UploadPlanned

ASIDE: Final[tuple[type[Struct], ...]] = (Measured, Implementation)
"""Types of fields that are replaced by their defaults before an event is hashed."""

APPENDED: Final[Mapping[type[Event], int]] = {UploadPlanned: 1}
"""Fields at the end that were added after ledgers had been written: hashed only where they say something, so that an
old ledger keeps its digest."""

APPENDED_DEFAULTS: Final[Mapping[type[Event], tuple[tuple[str, Any], ...]]] = {
    kind: tuple((field.name, field.default) for field in msgspec.structs.fields(kind)[-count:])
    for kind, count in APPENDED.items()
}
