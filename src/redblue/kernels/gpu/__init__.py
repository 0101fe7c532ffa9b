"""Triton kernels: the schedules on GPUs, and, without a GPU, under Triton's interpreter."""
