"""What is checked and measured on a GPU in one go, and, at small sizes, without one on the simulated driver."""
