"""Oracles that share no code with the core: what they know comes from events, messages and bytes alone."""
