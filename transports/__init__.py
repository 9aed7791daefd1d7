"""Devices, the producer and the block pools: where plans become bytes, and completions become reports."""
