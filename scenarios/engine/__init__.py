"""A small serving engine on the CPU: a model, its tokenizer, attention over any KV cache, and sampling."""
