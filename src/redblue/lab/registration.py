"""Register schedules of users, which are then counted, planned, listed, traced and drawn like built-in schedules."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redblue import schedules
from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.style import LOOKS
from redblue.base.text import quoted
from redblue.lab.verification import verify
from redblue.problem import DIRECTIONS
from redblue.schedules.schedule import OPERATOR_ARRAYS, PRODUCED, SHAPES, Pass, Schedule

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
FLAGS = ("drop_in", "spills", "safe", "full_only", "scattered", "variant")


@checked_arguments
def register_schedule(schedule: Schedule, *, replace: bool = False) -> Schedule:
    """Register a schedule of your own, and return it; its name then works wherever a built-in schedule's name does.

    `count`, `plan`, `trace`, `simulate`, `list_schedules`, sweeps, reports and figures accept it; plans and lists mark
    it as the user's. It has no kernel, so the operator never runs it.

    schedule: a redblue.schedules.Schedule with its Pass objects (docs/guide/own-schedule.md).
    replace: a schedule that a user registered under the same name may be replaced.

    Before it is registered, every pass runs on small problems, full and masked, with several tiles, on the numeric
    machine; a larger problem is counted. Raises RedblueError, which names the fault: an output that differs from
    the float64 reference, a closed form that differs from the words counted, a run that exceeds the stated peak
    (CapacityError) or breaks another rule of the machine (MachineError), a wrong field, or a name that is taken.
    """
    _check_fields(schedule)
    if schedule.name in (*schedules.BUILT_IN, *schedules.APPROXIMATE):
        raise RedblueError(f"the name {schedule.name!r} belongs to a built-in schedule: give another name")
    if schedules.is_users(schedule.name) and not replace:
        raise RedblueError(
            f"a schedule {schedule.name!r} is registered: give another name, replace=True, or call "
            f"unregister_schedule({schedule.name!r}) first"
        )
    verify(schedule)
    schedules.SCHEDULES[schedule.name] = schedule
    LOOKS.give(schedule.name)
    return schedule


@checked_arguments
def unregister_schedule(name: str) -> None:
    """Forget a schedule that a user registered. Raises RedblueError for a built-in one, and UnknownName."""
    if name in schedules.BUILT_IN:
        raise RedblueError(f"{name!r} is a built-in schedule: only a schedule that you registered can be removed")
    if name not in schedules.SCHEDULES:
        own = [other for other in schedules.SCHEDULES if schedules.is_users(other)]
        raise UnknownName("schedule of your own", name, own)
    del schedules.SCHEDULES[name]
    LOOKS.take_back(name)


def fingerprint(schedule: Schedule) -> str:
    """Return a hash of the source of a user's schedule, which tells stored results of an older version apart."""
    sources = [
        f"{direction} {field}".encode() + _source(getattr(one_pass, field))
        for direction, one_pass in sorted(schedule.passes.items())
        for field in ("run", "cost", "search", "sweeps", "tile_type")
    ]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]


def _source(program: Any) -> bytes:
    """Return the file that defines a function; its bytecode if there is none, as in an interactive session.

    A functools.partial also has its arguments. The source of an object that can be called is its type's.
    """
    if isinstance(program, functools.partial):
        return _source(program.func) + _text((program.args, sorted(program.keywords.items())))
    try:
        return Path(inspect.getsourcefile(program) or "").read_bytes()
    except (OSError, TypeError):
        code = getattr(program, "__code__", None)
    if code is not None:
        return code.co_code + _text((code.co_names, code.co_consts))
    if isinstance(program, type):
        return _text(getattr(program, "_fields", ()))
    call = type(program).__call__ if callable(program) else None
    return _source(call) if inspect.isfunction(call) else b""


def _text(values: tuple[Any, ...]) -> bytes:
    """Format values without the addresses of objects, which differ in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(values)).encode()


def _check_fields(schedule: Schedule) -> None:
    """Raise RedblueError, which names the field, for a schedule with a field of a wrong type or value."""
    if not isinstance(schedule.name, str) or not NAME.fullmatch(schedule.name):
        raise RedblueError(
            f"name must be at most 40 lower-case letters, digits and underscores, such as 'two_level'; got "
            f"{quoted(schedule.name) if isinstance(schedule.name, str) else repr(schedule.name)}"
        )
    for field in ("title", "source"):
        if not isinstance(getattr(schedule, field), str) or not getattr(schedule, field).strip():
            raise RedblueError(f"{field} of {schedule.name} must be text, got {getattr(schedule, field)!r}")
    for field in FLAGS:
        if not isinstance(getattr(schedule, field), bool):
            raise RedblueError(f"{field} of {schedule.name} must be True or False, got {getattr(schedule, field)!r}")
    if not isinstance(schedule.passes, Mapping) or not schedule.passes:
        raise RedblueError(f"passes of {schedule.name} must map directions to passes, got {schedule.passes!r}")
    for direction, one_pass in schedule.passes.items():
        if direction not in DIRECTIONS:
            raise RedblueError(f"a pass of {schedule.name} must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
        _check_pass(f"{schedule.name} {direction}", schedule, direction, one_pass)


def _check_pass(where: str, schedule: Schedule, direction: str, one_pass: Pass) -> None:
    """Raise RedblueError for a pass with a wrong field. where: begins the message."""
    if not isinstance(one_pass, Pass):
        raise RedblueError(f"{where}: the pass must be a redblue.schedules.Pass, got {one_pass!r}")
    for field in ("run", "tile_type", "cost", "sweeps", "scores", *(["search"] if one_pass.search is not None else [])):
        if not callable(getattr(one_pass, field)):
            raise RedblueError(f"{where}: {field} must be a function, got {getattr(one_pass, field)!r}")
    edges = getattr(one_pass.tile_type, "_fields", ())
    if not edges or not all(hasattr(one_pass.tile_type, edge) for edge in ("rows", "cols")):
        raise RedblueError(
            f"{where}: tile_type must be a NamedTuple with the edges rows and cols (queries and keys of a tile of "
            f"scores, as fields or properties), got {one_pass.tile_type!r}"
        )
    arrays, produced = one_pass.arrays, PRODUCED[direction]
    unknown = [name for name in arrays if name not in SHAPES]
    if unknown or not set(arrays) & set(produced):
        raise RedblueError(
            f"{where}: run(machine, problem, tiles, ...) must name arrays among {', '.join(SHAPES)}, with an output "
            f"among {', '.join(produced)}; got {', '.join(arrays) or 'none'}"
        )
    if schedule.drop_in and set(arrays) != OPERATOR_ARRAYS[direction]:
        needed, got = (", ".join(sorted(names)) for names in (OPERATOR_ARRAYS[direction], arrays))
        raise RedblueError(
            f"{where}: a schedule that plans may choose takes the arrays {needed}; got {got}. Give drop_in=False, or "
            "these arrays"
        )
