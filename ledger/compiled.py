"""The compiled form of the questions about ids, where it was built: `sets` is None elsewhere, and NumPy answers.

Both give the same answers. What the compiled form refuses, a ValueError, is left to NumPy too: ids from 2**24 on, for
which marks would take too much memory, and whatever is malformed.
"""

from types import ModuleType

sets: ModuleType | None = None
try:
    from kvsweep.ledger import _sets

    sets = _sets
except ImportError:  # not built: the reference answers
    pass
