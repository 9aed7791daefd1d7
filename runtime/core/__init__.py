"""The sans-I/O core: decisions, plans, and what follows by itself. No thread, clock, I/O or random."""
