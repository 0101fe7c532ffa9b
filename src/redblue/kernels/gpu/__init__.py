"""Triton kernels of the schedules, for GPUs; without a GPU, Triton's interpreter runs them."""
