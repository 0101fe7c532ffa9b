"""Plans as records: one LevelPlan for each boundary of a memory hierarchy; they print as a table."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from redblue.base.text import amount, limit_text, nesting_text, ratio, tile_text, time
from redblue.bounds import Bound
from redblue.lab.text import shape_text
from redblue.problem import Problem

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class LevelPlan:
    """The plan for one boundary. Words and bytes are over all streams of the problem.

    capacity_words: M, of one instance of the fast side; usable_words: of these, what tiles are chosen for: a cache that
    hardware fills does not hold all that it should (Level.usable_share). schedule, tiles, words: the choice, or None
    where no schedule fits (`why` says the least that would). With grouped heads, a tile's rows are g to a query.
    bound: the largest proved lower bound. candidates: fewest words of every schedule that fits; free_words: of the
    chosen one, whose tiles here nest and so may move more. seconds: bytes at the boundary's bandwidth, None where that
    is not known.
    """

    boundary: str
    capacity_words: int
    usable_words: int
    regime: str
    schedule: str | None
    tiles: dict[str, int]
    words: int | None
    free_words: int | None
    bytes: int | None
    peak: int | None
    flops: int | None
    bound: Bound
    candidates: dict[str, int]
    seconds: float | None
    why: str = ""

    @property
    def nesting(self) -> float | None:
        """Words over those of the best tiles that need not nest."""
        return self.words / self.free_words if self.words and self.free_words else None

    @property
    def gap(self) -> float | None:
        """Words over the lower bound: 1 is optimal."""
        return self.words / self.bound.words if self.words and self.bound.words else None


@dataclass(frozen=True)
class Plan:
    """Plans for every boundary, innermost first. Prints as a table."""

    problem: Problem
    memory: str
    levels: tuple[LevelPlan, ...]
    arithmetic_seconds: float | None
    arithmetic_dtype: str | None  # the type whose peak rate that assumes; None: no rate known
    note: str = ""  # what to know before believing it

    @property
    def times(self) -> dict[str, float | None]:
        """Seconds by boundary, and of "arithmetic"; None: not known."""
        return {level.boundary: level.seconds for level in self.levels} | {"arithmetic": self.arithmetic_seconds}

    @property
    def limit(self) -> str | None:
        """What takes longest of all that is known: a boundary's name, or "arithmetic". See `unknown` too."""
        known = {name: seconds for name, seconds in self.times.items() if seconds is not None}
        return max(known, key=known.__getitem__) if known else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """What may take longer still: its rate is not known."""
        return tuple(name for name, seconds in self.times.items() if seconds is None)

    @property
    def seconds(self) -> float | None:
        """The least time that the plan implies: everything overlapped, the slowest known part alone."""
        return max((t for t in self.times.values() if t is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        levels = [asdict(level) | {"gap": level.gap, "nesting": level.nesting} for level in self.levels]
        return {
            "problem": describe(self.problem),
            "memory": self.memory,
            "levels": levels,
            "arithmetic_seconds": self.arithmetic_seconds,
            "arithmetic_dtype": self.arithmetic_dtype,
            "limit": self.limit,
            "unknown": self.unknown,
            "note": self.note,
            "seconds": self.seconds,
        }

    def __rich__(self) -> Table:
        return _table(self)

    def __str__(self) -> str:
        from rich.console import Console  # here, for `import redblue` does without it

        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue().rstrip()


def describe(problem: Problem) -> dict[str, Any]:
    """A problem as plain data."""
    return asdict(problem) | {"mask": repr(problem.mask)}


def _table(plan: Plan) -> Table:
    from redblue.base.terminal import table  # here, for it imports rich

    rate = f" at the peak of {plan.arithmetic_dtype}" if plan.arithmetic_dtype else ""
    limit = limit_text(plan.limit, plan.unknown)
    made = table(
        ("boundary\nM (words)", "regime", "schedule\ntiles"),
        ("words\nbytes", "bound\ngap", "time"),
        title=f"{plan.memory}: {shape_text(plan.problem)}, {plan.problem.dtype}",
        caption=f"arithmetic {time(plan.arithmetic_seconds)}{rate}; {limit}" + (f"\n{plan.note}" if plan.note else ""),
    )
    for column in made.columns[:2]:
        column.no_wrap = True
    for level in plan.levels:
        made.add_row(
            f"{level.boundary}\n{level.capacity_words:,}",
            level.regime,
            f"{level.schedule or 'none fits'}\n{tile_text(level.tiles) or level.why}{nesting_text(level.nesting)}",
            f"{amount(level.words)}\n{amount(level.bytes)}",
            f"{amount(level.bound.words)}\n{ratio(level.gap)}",
            time(level.seconds),
        )
    return made
