"""CUDA kernels as source text, the driver they are launched through, and a simulated driver that runs them on a CPU."""
