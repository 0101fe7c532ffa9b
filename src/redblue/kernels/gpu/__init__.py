"""Triton kernels: the schedules on GPUs, and, without a GPU, under Triton's interpreter."""

from redblue.op.pytorch.ops import gpu_kernels

_kernels = gpu_kernels()
attention, interpreted = _kernels.attention, _kernels.interpreted

__all__ = ["attention", "interpreted"]
