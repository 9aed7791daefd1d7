"""Runs over everything: the demo, what proves the project, and what measures it."""
