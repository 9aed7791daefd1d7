"""The scheduler half inside vLLM: the coordinator in the scheduler's process, over vLLM's own block pool.

Nothing here imports vLLM when it is loaded, `connector` included: its class is made when it is first asked for.
"""
