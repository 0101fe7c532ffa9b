"""Attention algorithms, one file each, written once against an abstract machine. `get` returns one by name."""

from collections.abc import Iterable

from redblue.base.arguments import checked_arguments
from redblue.base.errors import UnknownName
from redblue.paged_problem import AnyProblem
from redblue.problem import DIRECTIONS
from redblue.schedules import (
    flash,
    flash1,
    flash_cluster,
    flash_kept,
    flash_onepass,
    gather,
    gradient_x,
    gradient_x_dp,
    gradient_x_hybrid,
    gradient_x_once,
    gradient_x_small,
    hybrid,
    paged,
    saha_ye,
    small_cache,
    spilled_ds,
    standard,
    taylor,
)
from redblue.schedules.schedule import Cost, NotCovered, Pass, Schedule, Scores, Sweep, TooFewWords, blocks

# A new algorithm needs its file, the import above and its name here.
MODULES = (
    standard, flash1, flash, flash_cluster, flash_onepass, flash_kept, gather, spilled_ds, hybrid, saha_ye, small_cache,
    gradient_x, gradient_x_dp, gradient_x_hybrid, gradient_x_small, gradient_x_once, paged,
)  # fmt: skip
BUILT_IN = tuple(module.schedule.name for module in MODULES)
SCHEDULES = {
    module.schedule.name: module.schedule for module in MODULES
}  # built-in schedules, and schedules that users register

APPROXIMATE = taylor.SCHEDULES  # only `get` returns them; lists, plans and the operator leave them out


@checked_arguments
def list_schedules(direction: str | None = None) -> list[str]:
    """Return the names of all schedules, or of the schedules with a pass in `direction`.

    direction: "forward", "backward", "gradient_x" or "paged". Raises UnknownName for any other direction.
    """
    if direction is not None and direction not in (*DIRECTIONS, "paged"):
        raise UnknownName("direction", direction, (*DIRECTIONS, "paged"))
    return [name for name, schedule in SCHEDULES.items() if direction is None or direction in schedule.passes]


@checked_arguments
def covering(problem: AnyProblem) -> list[str]:
    """Return the names of the schedules that are worthwhile for the problem's direction and mask.

    A full mask leaves out the schedules for scattered masks. Any other mask leaves out the schedules that take no
    mask.
    """
    candidates = ((name, SCHEDULES[name]) for name in list_schedules(problem.direction))
    full = problem.mask.is_full
    return [name for name, schedule in candidates if not (schedule.scattered if full else schedule.full_only)]


@checked_arguments
def get(name: str) -> Schedule:
    """Return the schedule of that name, exact or approximate. Raises UnknownName."""
    known = SCHEDULES | APPROXIMATE
    if name not in known:
        raise UnknownName("schedule", name, known)
    return known[name]


def is_users(name: str | None) -> bool:
    """Whether a user registered the schedule of that name."""
    return name in SCHEDULES and name not in BUILT_IN


def users(names: Iterable[str]) -> tuple[Schedule, ...]:
    """Return the schedules among `names` that a user registered."""
    return tuple(SCHEDULES[name] for name in names if is_users(name))


__all__ = [
    "APPROXIMATE",
    "BUILT_IN",
    "SCHEDULES",
    "Cost",
    "NotCovered",
    "Pass",
    "Schedule",
    "Scores",
    "Sweep",
    "TooFewWords",
    "blocks",
    "covering",
    "get",
    "is_users",
    "list_schedules",
    "users",
]
