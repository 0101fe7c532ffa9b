"""The compiled kernels, which execute plans."""
