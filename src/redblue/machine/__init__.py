"""Abstract machines that run schedules: counting, numeric, field, tracing, cached. They know nothing of attention.

The machines of several processes are in `redblue.machine.network`.
"""

from redblue.machine.base import Machine
from redblue.machine.cached import Cached
from redblue.machine.counting import Counting
from redblue.machine.errors import CapacityError, MachineError, NotKept, NotLoaded, NotStored, TooLong, UseAfterFree
from redblue.machine.field import Field
from redblue.machine.hierarchy import CacheLevel, LevelTraffic, Trace, belady, caches_of, play
from redblue.machine.numeric import Numeric
from redblue.machine.tracing import Tracing
from redblue.machine.values import Region, Slow, Tile, Value, exp, log, maximum, minimum

__all__ = [
    "CacheLevel",
    "Cached",
    "CapacityError",
    "Counting",
    "Field",
    "LevelTraffic",
    "Machine",
    "MachineError",
    "NotKept",
    "NotLoaded",
    "NotStored",
    "Numeric",
    "Region",
    "Slow",
    "Tile",
    "TooLong",
    "Trace",
    "Tracing",
    "UseAfterFree",
    "Value",
    "belady",
    "caches_of",
    "exp",
    "log",
    "maximum",
    "minimum",
    "play",
]
