"""A model of the Gluon operations that the Hopper kernel uses: it runs the kernel's own source on the CPU.

Each partition of the warps is a thread; only one runs at a time. Whenever a partition reaches a barrier, a copy or a
product, the next partition to run is drawn at random. Copies by TMA arrive at random times. A product in flight reads
its operands when the kernel waits for it. The model raises ModelError if all partitions wait for each other, if a copy
overwrites a tile that a product in flight reads, or if a barrier gets more arrivals than it expects. Shared memory
starts as NaN, so that tiles that are read too early show in the results.
"""

from support.gluon_model.bands import BANDS
from support.gluon_model.block import ModelError
from support.gluon_model.run import kernel_source, run_kernel

__all__ = ["BANDS", "ModelError", "kernel_source", "run_kernel"]
