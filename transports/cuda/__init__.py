"""A rank's device on CUDA: copies on streams, completions by events, tables that captured graphs may read."""
