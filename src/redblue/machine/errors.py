"""Errors of the machines: one class per rule that a schedule can break."""

from __future__ import annotations

from redblue.base.errors import RedblueError


class MachineError(RedblueError):
    """A schedule broke a rule of the machine."""


class CapacityError(MachineError):
    """A tile does not fit into the free words of the cache."""


class TooLong(MachineError):
    """A run made more moves or accesses than its limit, and was stopped."""


class UseAfterFree(MachineError):
    """A tile was used after it was freed."""


class NotLoaded(MachineError):
    """A region of slow memory was used in arithmetic without a load."""


class NotStored(MachineError):
    """Words of an output were never stored, or words were loaded before they were stored."""


class NotKept(MachineError):
    """A computed value was used after the next move, or where only words of tiles are allowed."""


class NotHeld(MachineError):
    """A process read rows of a block that it does not hold."""
