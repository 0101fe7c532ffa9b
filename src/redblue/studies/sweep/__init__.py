"""Sweeps: count schedules over any axes of the problem and the memory, on all cores or on a cluster."""

from redblue.studies.sweep.axes import GRAMMAR, Axis
from redblue.studies.sweep.grid import Sweep, make_sweep
from redblue.studies.sweep.picture import draw, figure
from redblue.studies.sweep.points import COLUMNS, Row
from redblue.studies.sweep.runner import run
from redblue.studies.sweep.store import read, write

__all__ = ["COLUMNS", "GRAMMAR", "Axis", "Row", "Sweep", "draw", "figure", "make_sweep", "read", "run", "write"]
