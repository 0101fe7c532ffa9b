"""The algorithms, one file each. `get` finds one by name."""

from redblue.base.errors import UnknownName
from redblue.problem import Problem
from redblue.schedules import (
    flash,
    flash1,
    flash_onepass,
    gather,
    gradient_x,
    gradient_x_small,
    hybrid,
    saha_ye,
    small_cache,
    spilled_ds,
    standard,
)
from redblue.schedules.schedule import Cost, NotCovered, Schedule, Sweep, TooFewWords

MODULES = (
    *(standard, flash1, flash, flash_onepass, gather, spilled_ds, hybrid, saha_ye, small_cache),
    *(gradient_x, gradient_x_small),
)
SCHEDULES = {module.schedule.name: module.schedule for module in MODULES}


def list_schedules(direction: str | None = None) -> list[str]:
    """Names of all schedules, or of those that have a pass in that direction."""
    return [name for name, schedule in SCHEDULES.items() if direction is None or direction in schedule.passes]


def covering(problem: Problem) -> list[str]:
    """Names of the schedules that have a program for the problem's direction and mask, and are meant for such masks."""
    found = ((name, SCHEDULES[name]) for name in list_schedules(problem.direction))
    full = problem.mask.is_full
    return [name for name, schedule in found if not (schedule.scattered if full else schedule.full_only)]


def get(name: str) -> Schedule:
    """The schedule of that name. Raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    return SCHEDULES[name]


__all__ = ["SCHEDULES", "Cost", "NotCovered", "Schedule", "Sweep", "TooFewWords", "covering", "get", "list_schedules"]
