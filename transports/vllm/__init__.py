"""The worker half inside vLLM: one rank's device over vLLM's own KV tensors, its reports, the tables of attention.

Nothing here imports vLLM when it is loaded; what touches it is handed in, or imported where it is called.
"""
