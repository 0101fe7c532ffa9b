"""Records of a plan: a Plan holds one LevelPlan per boundary of a memory hierarchy, and prints as a table."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from redblue.base.text import amount, limit_text, nesting_text, ratio, tile_text, time
from redblue.bounds import Bound, NetworkBound
from redblue.lab.text import shape_text
from redblue.paged_problem import AnyProblem

if TYPE_CHECKING:
    from redblue.base.terminal import StackingTable


@dataclass(frozen=True)
class LevelPlan:
    """The plan for one boundary. Words and bytes are summed over all streams of the problem.

    capacity_words: M, the capacity of one instance of the fast level.
    usable_words: the part of M that tiles may fill; less than M for a hardware-managed cache (Level.usable_share).
    schedule, tiles, words: the chosen schedule; None if no schedule fits, and `why` then gives the words needed. With
    g query heads per key head, each query takes g rows of a tile.
    candidates: fewest words of each schedule that fits. free_words: the entry of the chosen schedule; `words` may be
    larger because its tiles nest.
    own: whether a user registered the chosen schedule (`register_schedule`).
    bound: the largest proved lower bound. seconds: bytes over the boundary's bandwidth; None if that is unknown.
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
    own: bool = False

    @property
    def nesting(self) -> float | None:
        """Ratio of words to `free_words`: the cost of nesting."""
        return self.words / self.free_words if self.words and self.free_words else None

    @property
    def gap(self) -> float | None:
        """Ratio of words to the lower bound; 1 is optimal."""
        return self.words / self.bound.words if self.words and self.bound.words else None


@dataclass(frozen=True)
class NetworkPlan:
    """The plan for the network of a cluster.

    grid: its parts of the heads, rows and columns. words: words that cross the network. most_words, bytes: the most
    words and bytes that one process sends or receives. messages: the most messages that one process receives. peak: the
    most words that one process holds. share: pairs of the busiest process over the mean. candidates: seconds of the
    link with each schedule, estimated from a smaller problem if the sequence is long. bound: for this division of the
    pairs.
    """

    cluster: str
    processes: int
    link: str
    schedule: str
    grid: dict[str, int]
    placement: str
    words: int
    most_words: int
    bytes: int
    messages: int
    peak: int
    share: float
    bound: NetworkBound
    candidates: dict[str, float]
    seconds: float

    @property
    def gap(self) -> float | None:
        """Ratio of the busiest process's words, in one direction, to the lower bound; 1 is optimal."""
        return self.most_words / self.bound.most_words if self.bound.most_words else None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self) | {"gap": self.gap}


@dataclass(frozen=True)
class Plan:
    """Plans for every boundary, innermost first. Prints as a table.

    network: the plan of a cluster's network, else None. Levels and arithmetic then refer to its busiest process.
    """

    problem: AnyProblem
    memory: str
    levels: tuple[LevelPlan, ...]
    arithmetic_seconds: float | None
    arithmetic_dtype: str | None  # the dtype whose peak rate arithmetic_seconds assumes; None: no rate known
    note: str = ""  # a caveat, such as arrays that exceed the slowest memory
    network: NetworkPlan | None = None

    @property
    def times(self) -> dict[str, float | None]:
        """Seconds by boundary, of "arithmetic" and, on a cluster, of "network"; None: unknown."""
        times = {level.boundary: level.seconds for level in self.levels} | {"arithmetic": self.arithmetic_seconds}
        return times | ({"network": self.network.seconds} if self.network else {})

    @property
    def limit(self) -> str | None:
        """The slowest known part: a boundary's name, or "arithmetic". Parts in `unknown` may be slower."""
        known_times = {name: seconds for name, seconds in self.times.items() if seconds is not None}
        return max(known_times, key=known_times.__getitem__) if known_times else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts with an unknown rate, which may be slower than `limit`."""
        return tuple(name for name, seconds in self.times.items() if seconds is None)

    @property
    def seconds(self) -> float | None:
        """Lower bound of the plan's time: the slowest known part, with all other parts overlapped."""
        return max((t for t in self.times.values() if t is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as `--json` prints it."""
        levels = [asdict(level) | {"gap": level.gap, "nesting": level.nesting} for level in self.levels]
        return {
            "problem": describe(self.problem),
            "memory": self.memory,
            "levels": levels,
            "network": self.network.to_dict() if self.network else None,
            "arithmetic_seconds": self.arithmetic_seconds,
            "arithmetic_dtype": self.arithmetic_dtype,
            "limit": self.limit,
            "unknown": self.unknown,
            "note": self.note,
            "seconds": self.seconds,
        }

    def __rich__(self) -> StackingTable:
        return _table(self)

    def __str__(self) -> str:
        from redblue.base.terminal import console  # imported here, so that `import redblue` does not load rich

        text = io.StringIO()
        console(file=text, width=120).print(self)
        return text.getvalue().rstrip()


def describe(problem: AnyProblem) -> dict[str, Any]:
    """Return a problem as plain data."""
    return asdict(problem) | {"mask": repr(problem.mask)}


def _table(plan: Plan) -> StackingTable:
    from redblue.base.terminal import table  # imported here, because it imports rich

    rate = f" at the peak of {plan.arithmetic_dtype}" if plan.arithmetic_dtype else ""
    limit = limit_text(plan.limit, plan.unknown)
    rows = table(
        ("boundary\nM (words)", "regime", "schedule\ntiles"),
        ("words\nbytes", "bound\ngap", "time"),
        title=f"{plan.memory}: {shape_text(plan.problem)}, {plan.problem.dtype}",
        caption=f"arithmetic {time(plan.arithmetic_seconds)}{rate}; {limit}" + (f"\n{plan.note}" if plan.note else ""),
    )
    for column in rows.columns[:2]:
        column.no_wrap = True
    for level in plan.levels:
        name = f"{level.schedule or 'none fits'}{' (your own)' if level.own else ''}"
        rows.add_row(
            f"{level.boundary}\n{level.capacity_words:,}",
            level.regime,
            f"{name}\n{tile_text(level.tiles) or level.why}{nesting_text(level.nesting)}",
            f"{amount(level.words)}\n{amount(level.bytes)}",
            f"{amount(level.bound.words)}\n{ratio(level.gap)}",
            time(level.seconds),
        )
    if plan.network:
        rows.add_row(*_network_row(plan.network))
    return rows


def _network_row(net: NetworkPlan) -> tuple[str, ...]:
    """The row of the network: words and bytes of the busiest process in one direction."""
    grid = " x ".join(str(net.grid[side]) for side in ("rows", "cols"))
    heads = f", {net.grid['head_parts']} parts of heads" if net.grid["head_parts"] > 1 else ""
    return (
        f"network\n{net.processes} processes",
        f"work {net.share:.2f}",
        f"{net.schedule}\n{net.placement}, grid {grid}{heads}",
        f"{amount(net.most_words)}\n{amount(net.bytes)}",
        f"{amount(net.bound.most_words)}\n{ratio(net.gap)}",
        time(net.seconds),
    )
