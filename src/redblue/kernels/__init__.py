"""The compiled kernels: what runs a plan."""
