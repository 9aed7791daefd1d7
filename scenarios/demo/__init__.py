"""The demo: a small serving engine on the CPU, compacted round after round and compared with plain decoding."""
