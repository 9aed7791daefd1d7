"""What has a compiled form, where it was built: None elsewhere, and the reference in Python does it.

sets  questions about ids. What it refuses, a ValueError, is left to NumPy: ids from 2**24 on, for which marks would
      take too much memory, and whatever is malformed.
fold  the fold of stored events. What it does not take is left to kvsweep.ledger.fold.

Both forms give the same answers.
"""

from types import ModuleType

sets: ModuleType | None = None
fold: ModuleType | None = None
_why_not = ""
try:
    from kvsweep.ledger import _sets

    sets = _sets
except ImportError as error:
    _why_not = f"the extension was not built or does not load ({error})"
try:
    from kvsweep.ledger import _fold

    fold = _fold
except ImportError as error:
    _why_not = _why_not or f"the extension was not built or does not load ({error})"


def why_not_compiled() -> str | None:
    """Why the reference answers here, in one of them at least; None where it does not."""
    return _why_not or None
