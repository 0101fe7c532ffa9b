"""The algorithms, one file each. `get` finds one by name."""

from redblue.errors import UnknownName
from redblue.schedules import flash, hybrid, small_cache, standard
from redblue.schedules.schedule import Cost, NotCovered, Schedule, TooFewWords

SCHEDULES = {module.schedule.name: module.schedule for module in (standard, flash, hybrid, small_cache)}


def list_schedules(direction: str | None = None) -> list[str]:
    """Names of all schedules, or of those that have a pass in that direction."""
    return [name for name, schedule in SCHEDULES.items() if direction is None or direction in schedule.passes]


def get(name: str) -> Schedule:
    """The schedule of that name. Raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    return SCHEDULES[name]


__all__ = ["SCHEDULES", "Cost", "NotCovered", "Schedule", "TooFewWords", "get", "list_schedules"]
