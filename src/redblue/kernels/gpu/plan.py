"""From a card to a kernel and its tiles."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from redblue.kernels.cpu import Sizes
from redblue.schedules import flash


class Card(NamedTuple):
    """What of a GPU decides what runs on it."""

    arch: int = 90  # 10 * major + minor of the compute capability
    shared_bytes: int = 227 << 10  # of one block, at most
    registers: int = 65536  # 32-bit, of one multiprocessor
    l2_bytes: int = 50 << 20
    multiprocessors: int = 132
    warp: int = 32  # lanes


class Launch(NamedTuple):
    """What runs: a kernel by name, and its tiles by the names of its schedule."""

    kernel: str  # "flash", "hybrid", "small_cache", "decode"
    tiles: Any
    warps: int = 4
    stages: int = 2
    chunk: int = 0  # rows (stacked) whose probabilities are in memory at once, where they are spilled
    shared_bytes: int = 0


@cache
def card_of(device: torch.device) -> Card:
    """The device's own; a Hopper's for the CPU, where Triton interprets."""
    if device.type != "cuda":
        return Card()
    found = torch.cuda.get_device_properties(device)
    return Card(
        10 * found.major + found.minor,
        found.shared_memory_per_block_optin,
        found.regs_per_multiprocessor,
        found.L2_cache_size,
        found.multi_processor_count,
        found.warp_size,
    )


def plan(direction: str, sizes: Sizes, dtype: str, card: Card, sparse: bool = False, schedule: str = "auto") -> Launch:
    """sparse: whether the mask is no band. schedule: what must run; "auto": what moves the fewest words."""
    rows = 32 if max(sizes.d, sizes.d_v) > 256 else 64
    if direction == "forward":
        return Launch("flash", flash.ForwardTiles(2 * rows, rows), warps=8)
    return Launch("flash", flash.BackwardTiles(rows, 32, 32, rows), warps=4, stages=1)
