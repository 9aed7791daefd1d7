"""Situations: what a run is meant to reach, by name. Each is a predicate over the facts, seen one by one."""
SITUATIONS: dict[str, object] = {}
