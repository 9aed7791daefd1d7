"""What has a compiled form, where it was built: None elsewhere, and NumPy does it. Both give the same answers.

sets  questions about ids. What it refuses, a ValueError, is left to NumPy: ids from 2**24 on, for which marks would
      take too much memory, and whatever is malformed.
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
