"""Checks of the vLLM connector on a stock vLLM; `scripts/test-vllm` runs them, `docs/vllm.md` has the figures."""
