"""The properties of a GPU that planning needs, from the catalogue of memories or from a device."""

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
BUSY = 0.75  # a launch with blocks for this share of the multiprocessors counts as full occupancy


class Card(NamedTuple):
    """The properties of a GPU that planning needs."""

    arch: int = 90  # 10 * major + minor of the compute capability; OTHER
    shared_bytes: int = 227 << 10  # limit of one block
    registers: int = 65536  # 32-bit registers per multiprocessor
    l2_bytes: int = 50 << 20
    multiprocessors: int = 132
    warp: int = 32  # lanes of a warp


def card_named(name: str | os.PathLike[str] | Memory) -> Card:
    """The GPU of this name in the catalogue, or in a file in the catalogue's format.

    Raises RedblueError for a machine that is not a GPU, or whose entry lacks a fact that planning needs.
    """
    machine = memory(name)
    facts, fast = machine.facts, machine.levels[0]
    if machine.kind != "gpu" or not fast.capacity_bytes or "registers_bytes" not in facts or len(machine.levels) < 3:
        raise RedblueError(
            f"kernels are planned for GPUs whose shared memory, registers and L2 are known. {machine.name} is not "
            "such a GPU: choose another of redblue.list_memories()"
        )
    return Card(
        arch=round(facts.get("compute_capability", OTHER)),
        shared_bytes=fast.capacity_bytes,
        registers=round(facts["registers_bytes"]) // 4,
        l2_bytes=machine.levels[1].capacity_bytes or 0,
        multiprocessors=fast.count,
        warp=32 if not machine.architecture.startswith("CDNA") else 64,
    )


def card_of(device: torch.device) -> Card:
    """The device's own properties, or the card of `planning_for`."""
    return _override or _detected(device)


@contextmanager
def planning_for(card: Card) -> Iterator[None]:
    """A context in which calls are planned for this card, for instance a card with less shared memory."""
    global _override
    before, _override = _override, card
    try:
        yield
    finally:
        _override = before


_override: Card | None = None


@cache
def _detected(device: torch.device) -> Card:
    """The properties of the device. On the CPU, where Triton interprets kernels, they are those of a Hopper GPU."""
    if device.type != "cuda":
        return Card()
    from triton.runtime import driver  # PyTorch does not report the shared memory of a block on AMD GPUs

    device_facts, triton = torch.cuda.get_device_properties(device), cast(Any, driver.active)
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    return Card(
        OTHER if torch.version.hip else 10 * device_facts.major + device_facts.minor,
        triton.utils.get_device_properties(ordinal)["max_shared_mem"],
        device_facts.regs_per_multiprocessor,
        device_facts.L2_cache_size,
        device_facts.multi_processor_count,
        device_facts.warp_size,
    )
