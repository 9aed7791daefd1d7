"""Random worlds, workloads and faults from one seed; a failing one is shrunk to a scenario file."""
