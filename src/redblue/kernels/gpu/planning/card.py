"""What of a GPU decides what runs on it: from the catalogue of memories, or from a device that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch

from redblue.base.errors import RedblueError
from redblue.catalogue.memories import Memory, memory

OTHER = 0  # the architecture of a GPU that is not NVIDIA's


class Card(NamedTuple):
    arch: int = 90  # 10 * major + minor of the compute capability; OTHER
    shared_bytes: int = 227 << 10  # of one block, at most
    registers: int = 65536  # 32-bit, of one multiprocessor
    l2_bytes: int = 50 << 20
    multiprocessors: int = 132
    warp: int = 32  # lanes


def card_named(name: str | os.PathLike[str] | Memory) -> Card:
    """The GPU of that name in the catalogue, or in a file of that form.

    Raises RedblueError for a machine that is no GPU, or of which the catalogue does not know enough.
    """
    found = memory(name)
    facts, fast = found.facts, found.levels[0]
    if found.kind != "gpu" or not fast.capacity_bytes or "registers_bytes" not in facts or len(found.levels) < 3:
        raise RedblueError(
            f"kernels are planned for GPUs whose shared memory, registers and L2 are known, which {found.name} is not: "
            "choose another of redblue.list_memories()"
        )
    return Card(
        arch=round(facts.get("compute_capability", OTHER)),
        shared_bytes=fast.capacity_bytes,
        registers=round(facts["registers_bytes"]) // 4,
        l2_bytes=found.levels[1].capacity_bytes or 0,
        multiprocessors=fast.count,
        warp=32 if not found.architecture.startswith("CDNA") else 64,
    )


def card_of(device: torch.device) -> Card:
    """The device's own, unless the planner is told of another."""
    return _told or _detected(device)


@contextmanager
def told(card: Card) -> Iterator[None]:
    """Within, kernels are planned for this card whatever the device is, such as one with less shared memory."""
    global _told
    before, _told = _told, card
    try:
        yield
    finally:
        _told = before


_told: Card | None = None


@cache
def _detected(device: torch.device) -> Card:
    """A Hopper's for the CPU, where Triton interprets."""
    if device.type != "cuda":
        return Card()
    from triton.runtime import driver  # PyTorch does not say what a block of an AMD GPU has

    found, triton = torch.cuda.get_device_properties(device), cast(Any, driver.active)
    place = torch.cuda.current_device() if device.index is None else device.index
    return Card(
        OTHER if torch.version.hip else 10 * found.major + found.minor,
        triton.utils.get_device_properties(place)["max_shared_mem"],
        found.regs_per_multiprocessor,
        found.L2_cache_size,
        found.multi_processor_count,
        found.warp_size,
    )
