"""A rank's device on CUDA."""
