"""The points of a sweep: the product of its axes. Points are made on request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import joblib

from redblue.base.errors import RedblueError
from redblue.catalogue.detect import detect_cpu
from redblue.catalogue.memories import THIS_MACHINE, Boundary, memory
from redblue.lab.registration import fingerprint
from redblue.masks import Mask
from redblue.masks.names import parse as parse_mask
from redblue.problem import Problem
from redblue.schedules import list_schedules, users
from redblue.studies.sweep.axes import MINIMUM, NAMES, Axis, make_axis

MAX_POINTS = 200_000  # all rows are held in memory
SIZES = ("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads")
# The order of the rows: the slowest axis first. The schedules of a point are the innermost.
ORDER = ("direction", "dtype", "batch", "heads", "kv_heads", "mask", "window", "d", "d_v", "n", "n_q", "n_k", "cache")


@dataclass(frozen=True)
class Cache:
    """The place at which words are counted: a cache of `words` words, or one boundary of a memory."""

    words: int | None = None
    memory: str | None = None
    boundary: Boundary | None = None

    @property
    def identity(self) -> list[Any]:
        """Plain data that two caches share if their rows are the same.

        This machine is named by its CPU instead of its bandwidth, because each process may measure another bandwidth.
        """
        boundary = self.boundary
        if boundary is None:
            return [self.words, self.memory]
        rate = detect_cpu().model if self.memory == THIS_MACHINE else boundary.bandwidth_bytes_per_second
        return [self.words, self.memory, boundary.name, boundary.capacity_bytes, rate]


@dataclass(frozen=True)
class Point:
    """One combination of axis values: a problem, counted at each of `caches` by each of `schedules`.

    fields: the arguments of the problem that the axes set. named: whether the caller named the schedules.
    """

    index: int
    fields: dict[str, Any]
    mask: Mask
    mask_label: str
    window: int | None
    caches: tuple[Cache, ...]
    schedules: tuple[str, ...]
    named: bool

    def problem(self) -> Problem:
        """Make the problem. Raises RedblueError if the values contradict each other."""
        return Problem(**self.fields, mask=self.mask)


@dataclass(frozen=True)
class Sweep:
    """The axes of a sweep, with the masks and caches that their values name.

    caches: for each value of words and memory, the caches to count at; a memory has one for each boundary.
    """

    axes: dict[str, Axis]
    masks: tuple[Mask, ...]
    caches: tuple[tuple[Cache, ...], ...]

    @cached_property
    def _lengths(self) -> list[tuple[str, int]]:
        lengths = {name: len(axis.values) for name, axis in self.axes.items()} | {"cache": len(self.caches)}
        return [(name, lengths[name]) for name in ORDER if name in lengths]

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(length for _, length in self._lengths)

    @property
    def varying(self) -> list[Axis]:
        """The axes with more than one value."""
        return [axis for axis in self.axes.values() if len(axis.values) > 1]

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the rows, as plain data: sweeps with equal identities have equal rows.

        The times on `this-machine` alone may differ, because its bandwidth is measured.
        """
        return {
            "axes": {name: axis.labels for name, axis in self.axes.items()},
            "masks": [joblib.hash(mask) for mask in self.masks],
            "caches": [[cache.identity for cache in caches] for caches in self.caches],
            "schedules": list(self.schedules),
            **(
                {"own": {schedule.name: fingerprint(schedule) for schedule in users(self.schedules)}}
                if users(self.schedules)
                else {}
            ),
        }

    @property
    def schedules(self) -> tuple[str, ...]:
        return self.axes["schedule"].values if "schedule" in self.axes else tuple(list_schedules())

    def point(self, index: int) -> Point:
        """Make the point with this index, 0 .. size - 1."""
        places, rest = {}, index
        for name, length in reversed(self._lengths):
            rest, places[name] = divmod(rest, length)
        values = {name: axis.values[places[name]] for name, axis in self.axes.items() if name in places}
        problem_values = {name: values.get(name, values.get("n") if name in ("n_q", "n_k") else None) for name in SIZES}
        problem_values = {name: value for name, value in problem_values.items() if value is not None}
        problem_values |= {name: values[name] for name in ("dtype", "direction") if name in values}
        kind = next((name for name in ("window", "mask") if name in self.axes), None)
        label = str(self.axes[kind].labels[places[kind]]) if kind else "full"
        return Point(
            index,
            problem_values,
            self.masks[places[kind]] if kind else self.masks[0],
            f"window:{label}" if kind == "window" else label,
            values.get("window"),
            self.caches[places["cache"]],
            self.schedules,
            "schedule" in self.axes,
        )


def make_sweep(values: Mapping[str, Any]) -> Sweep:
    """Make the sweep over these axes; each has text in the form of sweep.GRAMMAR, one value, or several values.

    Axes: n (n_q = n_k), n_q, n_k, d, d_v, batch, heads, kv_heads, window (keys before the query's own; excludes mask),
    mask, dtype, direction, words (the cache's capacity), memory (each of its boundaries), schedule. Required: n, or n_q
    and n_k; d; and words, memory or both.
    Raises RedblueError for missing, unknown or contradictory axes, and if no point is a valid problem.
    """
    if not isinstance(values, Mapping):
        raise RedblueError(
            f"a sweep must be axes by name, such as {{'n': 4096, 'd': '64,128', 'words': 12288}}; got {values!r}"
        )
    axes = {name: make_axis(name, value) for name, value in values.items() if value is not None}
    axes = {name: axes[name] for name in (*MINIMUM, *NAMES) if name in axes}
    missing = [f"n or {name}" for name in ("n_q", "n_k") if name not in axes and "n" not in axes]
    missing += ["d"] if "d" not in axes else []
    missing += ["words or memory"] if not {"words", "memory"} & set(axes) else []
    if missing:
        raise RedblueError(f"the sweep needs its sizes and a cache: {', '.join(missing)} not given")
    for axis, other in (({"window"}, {"mask"}), ({"n"}, {"n_q", "n_k"})):
        if axis | other <= set(axes):
            names = " and ".join(sorted(other))
            raise RedblueError(f"{min(axis)} cannot be given with {names}: leave one of them out")
    sweep = Sweep(axes, _masks(axes), _caches(axes))
    if sweep.size > MAX_POINTS:
        sizes = " x ".join(f"{length} {name}" for name, length in sweep._lengths if length > 1)
        raise RedblueError(f"{sizes} are {sweep.size:,} points, at most {MAX_POINTS:,} are taken: split the sweep")
    _check_some_valid(sweep)
    return sweep


def _masks(axes: Mapping[str, Axis]) -> tuple[Mask, ...]:
    if "window" in axes:
        return tuple(Mask.sliding_window(left) for left in axes["window"].values)
    texts = axes["mask"].values if "mask" in axes else ("full",)
    return tuple(text if isinstance(text, Mask) else parse_mask(text) for text in texts)


def _caches(axes: Mapping[str, Axis]) -> tuple[tuple[Cache, ...], ...]:
    """One cache for each capacity in words; for each memory, one for each boundary of known capacity."""
    caches: list[tuple[Cache, ...]] = [
        (Cache(words=words),) for words in (axes["words"].values if "words" in axes else ())
    ]
    for name in axes["memory"].values if "memory" in axes else ():
        machine = memory(name)
        boundaries = tuple(
            Cache(None, machine.name, boundary) for boundary in machine.boundaries if boundary.capacity_bytes
        )
        if not boundaries:
            raise RedblueError(f"memory {machine.name!r} has no level of known capacity: nothing to count")
        caches.append(boundaries)
    return tuple(caches)


def _check_some_valid(sweep: Sweep) -> None:
    """Raise RedblueError, with some of the reasons, if no point is a valid problem."""
    reasons: dict[str, None] = {}
    for index in range(sweep.size):
        reason = _why_invalid(sweep.point(index))
        if reason is None:
            return
        reasons[reason] = None
    some = "; ".join(list(reasons)[:3])
    raise RedblueError(f"none of the {sweep.size:,} points is a valid problem: {some}")


def _why_invalid(point: Point) -> str | None:
    try:
        point.problem()
    except RedblueError as error:
        return str(error)
    return None
