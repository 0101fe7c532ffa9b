"""The rules of the machine, as the errors that name what broke them."""

from __future__ import annotations

from redblue.base.errors import RedblueError


class MachineError(RedblueError):
    """A schedule broke a rule of the machine."""


class CapacityError(MachineError):
    """A tile does not fit into what is left of the cache."""


class TooLong(MachineError):
    """A run did more than it was allowed to: it was given up."""


class UseAfterFree(MachineError):
    """A tile was used after its words were given up."""


class NotLoaded(MachineError):
    """Slow memory was used in arithmetic without a load."""


class NotStored(MachineError):
    """Words of an output were never stored, or words were loaded that nothing ever stored."""


class NotKept(MachineError):
    """A computed value was used after the next move without having been put into a tile."""
