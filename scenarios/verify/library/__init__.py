"""Scenarios that ship: one TOML file each, named by what happens. `kvsweep scenario list` shows them."""
