"""What measures the project: benchmarks, the run on a GPU, the checks of the vLLM connector."""
