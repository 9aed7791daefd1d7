"""Scripted runs: the serving loop on a model, and what is measured there."""
