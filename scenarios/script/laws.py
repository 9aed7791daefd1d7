"""Names."""
LAW_NAMES: tuple[str, ...] = ()
FIGURES: tuple[str, ...] = ()
VERDICTS: tuple[str, ...] = ("duplicate", "stale", "future", "conflict")
