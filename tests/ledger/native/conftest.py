"""The compiled part of the ledger beside its reference; nothing is collected where it was not built."""

from kvsweep.ledger.store.encoding import why_not_native

if why_not_native() is not None:
    collect_ignore_glob = ["test_*.py"]
