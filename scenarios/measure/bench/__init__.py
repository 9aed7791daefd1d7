"""`kvsweep bench`: the native kernels against their peers and against what the memory system allows, in one run."""
