"""Schedules of attention over several processes: one program on grids of different shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redblue.base.dtypes import BYTES_PER_WORD, sum_dtype
from redblue.base.errors import UnknownName
from redblue.machine.network import CountingNetwork, Network, Shape, Traffic
from redblue.masks import Mask
from redblue.problem import Problem
from redblue.schedules.network import closed_form, program
from redblue.schedules.network.layout import KEY_ARRAYS, SUMS, WHOLE, Grid, Layout, Part
from redblue.schedules.network.placement import PLACEMENTS, Placement, placement_of


class NetworkSchedule(NamedTuple):
    """A family of grids, and the route of the keys on them.

    source: paper, or the derivation. grids(processes): the shapes to choose from. own_queries: on all of these
    shapes, a process computes with its own queries only, for all heads.
    """

    title: str
    source: str
    travel: str
    grids: Callable[[int], list[Grid]]
    own_queries: bool = False


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


SCHEDULES = {
    "ring": NetworkSchedule(
        "keys travel around a ring of all processes",
        "Liu, Zaharia, Abbeel, arXiv 2310.01889; in zigzag and striped placements Brandon et al., arXiv 2311.09431",
        "ring",
        lambda processes: [Grid(1, processes, 1)],
        own_queries=True,
    ),
    "all_gather": NetworkSchedule(
        "every process receives all keys that it needs, before it computes",
        "context parallelism of Llama 3, arXiv 2407.21783, section 3.3.2",
        "gather",
        lambda processes: [Grid(1, processes, 1)],
        own_queries=True,
    ),
    "head_parallel": NetworkSchedule(
        "processes exchange tokens for heads",
        "DeepSpeed-Ulysses, Jacobs et al., arXiv 2309.14509",
        "direct",
        lambda processes: [Grid(processes, 1, 1)],
    ),
    "ring_heads": NetworkSchedule(
        "processes of a node exchange tokens for heads, keys travel around rings of nodes",
        "unified sequence parallelism, Fang and Zhao, arXiv 2405.07719",
        "ring",
        lambda processes: [Grid(parts, processes // parts, 1) for parts in _divisors(processes)],
    ),
    "mesh": NetworkSchedule(
        "queries travel along the rows of a mesh of processes, keys along its columns",
        "Attention2D, arXiv 2503.15758; Mesh-Attention, arXiv 2512.20968",
        "direct",
        lambda processes: [Grid(1, rows, processes // rows) for rows in _divisors(processes)],
    ),
}


def get(name: str) -> NetworkSchedule:
    """The schedule of that name. Raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("network schedule", name, SCHEDULES)
    return SCHEDULES[name]


def layouts(
    name: str,
    problem: Problem,
    processes: int,
    placement: str | Placement = "contiguous",
    per_head: Mask | None = None,
) -> list[Layout]:
    """The layouts of a schedule that can divide the heads. Raises RedblueError, which says why, if there is none.

    per_head: a mask with planes that replaces the problem's mask.
    """
    schedule = get(name)
    queries = placement_of(placement, problem.n_q, processes)
    keys = queries if problem.n_k == problem.n_q else placement_of(placement, problem.n_k, processes)
    grids = schedule.grids(processes)
    fitting = [grid for grid in grids if grid.divides(problem)]
    return [Layout(problem, grid, queries, keys, schedule.travel, per_head) for grid in fitting or grids]


def fewest_words(candidates: list[Layout]) -> Layout:
    """The layout whose busiest process moves the fewest words. The other layouts drop their cached rows."""
    best = candidates[0]
    for other in candidates[1:]:
        worse = other
        if traffic(other).most_words < traffic(best).most_words:
            best, worse = other, best
        worse.forget_rows()
    return best


def run(net: Network, c: Layout) -> None:
    """Run the program of the problem's direction."""
    {"forward": program.forward, "backward": program.backward}[c.problem.direction](net, c)


INPUTS = {"forward": ("q", "k", "v"), "backward": ("q", "k", "v", "dout", "lse", "delta")}
OUTPUTS = {"forward": ("out", "lse"), "backward": ("dq", "dk", "dv")}


def inputs(c: Layout, process: int) -> dict[Part, Shape]:
    """The blocks that a process holds at the start."""
    held = {}
    for array in INPUTS[c.problem.direction]:
        keys = array in KEY_ARRAYS
        for part in range(c.kv_parts if keys else c.grid.head_parts):
            name = Part(array, process, part)
            held[name] = c.shape(name, c.all_rows(process, keys))
    return held


def count(c: Layout, capacity: int | None = None) -> CountingNetwork:
    """Run the program on a machine that counts. capacity: words that a process may hold."""
    sums = BYTES_PER_WORD[sum_dtype(c.problem.dtype)]
    own = BYTES_PER_WORD[c.problem.dtype]
    net = CountingNetwork(c.grid.processes, capacity, lambda name: sums if name.array in SUMS else own)
    for p in net.here:
        for name, shape in inputs(c, p).items():
            net.hold(p, name, shape)
    run(net, c)
    net.check_outputs(
        (p, Part(array, p, WHOLE), len(c.all_rows(p, array in KEY_ARRAYS)))
        for p in net.here
        for array in OUTPUTS[c.problem.direction]
    )
    return net


def traffic(c: Layout) -> Traffic | closed_form.Words:
    """The words of each process: by the closed form for a full mask, by a count for any other."""
    if "traffic" not in c.__dict__:  # kept with the layout, so that both are freed together
        c.__dict__["traffic"] = closed_form.words(c) if c.mask.is_full else count(c).traffic
    return c.__dict__["traffic"]


__all__ = [
    "PLACEMENTS",
    "SCHEDULES",
    "Grid",
    "Layout",
    "NetworkSchedule",
    "Part",
    "Placement",
    "count",
    "fewest_words",
    "get",
    "inputs",
    "layouts",
    "placement_of",
    "run",
    "traffic",
]
