"""Abstract machines: what a schedule runs on. They know no attention."""

from redblue.machine.base import (
    CapacityError,
    Machine,
    MachineError,
    NotKept,
    NotLoaded,
    NotStored,
    Region,
    Slow,
    Tile,
    UseAfterFree,
    Value,
    exp,
    log,
    maximum,
    minimum,
)
from redblue.machine.counting import Counting
from redblue.machine.numeric import Numeric

__all__ = [
    "CapacityError",
    "Counting",
    "Machine",
    "MachineError",
    "NotKept",
    "NotLoaded",
    "NotStored",
    "Numeric",
    "Region",
    "Slow",
    "Tile",
    "UseAfterFree",
    "Value",
    "exp",
    "log",
    "maximum",
    "minimum",
]
