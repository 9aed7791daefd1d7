"""The worker half inside vLLM: one rank's device over vLLM's own KV tensors, its words, and the tables attention reads.

Nothing here imports vLLM when it is loaded; what touches it is handed in, or imported where it is called.
"""
