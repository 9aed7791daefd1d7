"""Coordinator of KV-cache compaction for LLM serving."""

__version__ = "0.1.0"
