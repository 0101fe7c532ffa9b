"""Sweeps: schedules counted over any axes of the problem and the memory, on all cores or on a cluster."""

from redblue.sweep.axes import GRAMMAR, Axis
from redblue.sweep.grid import Sweep, make_sweep
from redblue.sweep.picture import draw, figure
from redblue.sweep.points import COLUMNS, Row
from redblue.sweep.runner import run
from redblue.sweep.store import read, write

__all__ = ["COLUMNS", "GRAMMAR", "Axis", "Row", "Sweep", "draw", "figure", "make_sweep", "read", "run", "write"]
