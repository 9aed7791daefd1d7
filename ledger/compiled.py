"""The compiled form of the questions about ids, where it was built: `sets` is None elsewhere, and NumPy answers.

Both give the same answers. What the compiled form refuses, a ValueError, is left to NumPy too: ids from 2**24 on, for
which marks would take too much memory, and whatever is malformed.
"""

from types import ModuleType

sets: ModuleType | None = None
_why_not = ""
try:
    from kvsweep.ledger import _sets

    sets = _sets
except ImportError as error:
    _why_not = f"the extension was not built or does not load ({error})"


def why_not_compiled() -> str | None:
    """Why NumPy answers here; None where it does not."""
    return _why_not or None
