"""Plan a problem on a cluster: the schedule, grid and placement with the least time, and the words of one process.

A process's time is at least the longer of its time on the link and its time of arithmetic, because the two may overlap.
Every schedule is tried on every grid and placement. Long sequences are tried at a smaller size of the same kind, and
only the winner is counted at full size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.bounds.network import network_bound
from redblue.catalogue.clusters import Cluster
from redblue.catalogue.memories import Memory
from redblue.lab.plans import NetworkPlan
from redblue.machine.network import CountingNetwork
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.selected import attended_keys, selected
from redblue.paged_problem import AnyProblem
from redblue.problem import Problem
from redblue.schedules import network
from redblue.schedules.network import PLACEMENTS, Layout, Placement
from redblue.schedules.network.balance import best_placement

MAX_TRIED = 1 << 14  # most queries and keys of the problem on which candidates are compared
SAME = 1.02  # ratio of times that count as equal
LINE = 256  # blocks in a row of a mask that is planned on one machine
BEST = "best"  # the choice of best_placement, which depends on the size


@dataclass(frozen=True)
class Candidate:
    """A layout of a schedule on a cluster, with its counted words and its work."""

    schedule: str
    layout: Layout
    cluster: Cluster

    @cached_property
    def counted(self) -> CountingNetwork:
        return network.count(self.layout)

    @cached_property
    def pairs(self) -> list[int]:
        """Attended pairs that each process works on, over all its heads."""
        c, of_node = self.layout, {}
        for row in range(c.grid.rows):
            for col in range(c.grid.cols):
                mask = local_mask(c, row, col)
                sizes = len(tokens(c, row, keys=False)), len(tokens(c, col, keys=True))
                of_node[row, col] = 0 if mask is None else mask.on(*sizes).nnz
        heads = c.problem.batch * c.problem.heads // c.grid.head_parts
        return [heads * of_node[c.grid.place(p)[:2]] for p in range(c.grid.processes)]

    @property
    def busiest(self) -> int:
        """The process with the most pairs."""
        return int(np.argmax(self.pairs))

    @property
    def bytes(self) -> int:
        """The most bytes that a process sends or receives."""
        return int(max(self.counted.bytes_sent.max(), self.counted.bytes_received.max()))

    @property
    def latency_seconds(self) -> float:
        """The latencies of all messages that a process receives."""
        return int(self.counted.traffic.messages.max()) * self.cluster.link.latency_seconds

    @property
    def network_seconds(self) -> float:
        return self.bytes / self.cluster.link.bandwidth_bytes_per_second + self.latency_seconds

    def seconds(self, peak: float | None, grow: float) -> tuple[float, float]:
        """The times of the link and of arithmetic. peak: flops per second; None: unknown, arithmetic counts as 0 s.

        The times are estimated for sequences `grow` times as long: bytes grow with `grow`, pairs with its square.
        """
        arithmetic = max(self.pairs) * flops_per_pair(self.layout.problem) * grow**2 / peak if peak else 0.0
        link = grow * self.bytes / self.cluster.link.bandwidth_bytes_per_second + self.latency_seconds
        return link, arithmetic


def flops_per_pair(problem: Problem) -> int:
    """Flops per pair: two for each product, forward Q K^T and P V, backward five products."""
    d, d_v = problem.d, problem.d_v
    return 2 * (d + d_v) if problem.direction == "forward" else 2 * (3 * d + 2 * d_v)


def tokens(c: Layout, line: int, keys: bool) -> np.ndarray:
    """The positions of the queries of a row of the grid, or of the keys of a column, ascending."""
    places = (c.grid.place(p) for p in range(c.grid.processes))
    owners = [p for p, place in enumerate(places) if place[keys] == line]
    placement = c.keys if keys else c.queries
    return np.sort(np.concatenate([placement.positions[p] for p in owners]))


def local_mask(c: Layout, row: int, col: int) -> Mask | None:
    """The mask among the queries of a row of the grid and the keys of a column; None: no pair attends."""
    problem = c.problem
    rule = selected(problem.mask.rule, tokens(c, row, keys=False), tokens(c, col, keys=True), problem.n_q, problem.n_k)
    return None if rule is None else Mask(rule)


def local_problem(c: Layout, process: int) -> Problem | None:
    """The attention that one process computes, as if it held all its keys at once; None: it has no pair.

    A large mask that is no window is coarsened to blocks, LINE in a row: planning the pairs one by one would take
    minutes.
    """
    row, col, _ = c.grid.place(process)
    queries, keys = tokens(c, row, keys=False), tokens(c, col, keys=True)
    sizes = c.problem.n_q, c.problem.n_k
    keys = np.intersect1d(keys, attended_keys(c.mask.rule, queries, *sizes), assume_unique=True)
    rule = selected(c.mask.rule, queries, keys, *sizes)
    if rule is None:
        return None
    simple = rule.is_full or isinstance(rule, Window) or min(len(queries), len(keys)) <= LINE
    mask = Mask(rule) if simple else in_blocks(rule, len(queries), len(keys))
    heads, kv_heads = c.problem.heads // c.grid.head_parts, c.problem.kv_heads // c.kv_parts
    return replace(c.problem, n_q=len(queries), n_k=len(keys), heads=heads, kv_heads=kv_heads, mask=mask)


def in_blocks(rule: Rule, n_q: int, n_k: int) -> Mask:
    """The blocks of a rule in which some pair attends (a superset of these where its pattern is not exact)."""
    edges = -(-n_q // LINE), -(-n_k // LINE)
    first = np.arange(0, n_q, edges[0])
    live = rule.pattern(n_q, n_k).outer(first, np.minimum(first + edges[0], n_q))
    row, low = np.divmod(live[::2], n_k + 1)
    high = live[1::2] - row * (n_k + 1)
    steps = np.zeros((len(first), -(-n_k // edges[1]) + 1), np.int64)
    np.add.at(steps, (row, low // edges[1]), 1)
    np.add.at(steps, (row, -(-high // edges[1])), -1)
    return Mask.blocks(np.cumsum(steps, axis=1)[:, :-1] > 0, edges)


def peak_flops(problem: Problem, machine: Memory) -> float | None:
    """The flops per second of a machine in the problem's type, else in float32, to which narrower types convert."""
    peaks = machine.peak_flops_per_second
    return peaks.get(problem.dtype) or (peaks.get("float32") if problem.bytes_per_word <= 4 else None)


def best_candidate(problem: AnyProblem, cluster: Cluster) -> tuple[Candidate, dict[str, float]]:
    """Return the fastest layout, and the seconds of the link with each schedule (estimated, for long sequences).

    Raises RedblueError for problems that have no network schedule, and for fewer tokens than processes.
    """
    if not isinstance(problem, Problem) or problem.direction not in ("forward", "backward"):
        raise RedblueError("a cluster is planned for problems of direction forward and backward, without pages")
    if min(problem.n_q, problem.n_k) < cluster.processes:
        raise RedblueError(
            f"n_q ({problem.n_q:,}) and n_k ({problem.n_k:,}) must be at least the {cluster.processes:,} processes of "
            f"the cluster: give fewer processes"
        )
    small, peak = smaller_problem(problem, cluster.processes), peak_flops(problem, cluster.memory)
    grow = max(problem.n_q / small.n_q, problem.n_k / small.n_k)
    tried = [
        Trial(placement, candidate, *candidate.seconds(peak, grow))
        for placement, candidate in _candidates(small, cluster)
    ]
    chosen = fastest(tried)
    by_schedule = {name: [trial for trial in tried if trial.candidate.schedule == name] for name in network.SCHEDULES}
    name, grid = chosen.candidate.schedule, chosen.candidate.layout.grid
    layouts = network.layouts(name, problem, cluster.processes, _placed(chosen.placement, problem, cluster.processes))
    winner = next(layout for layout in layouts if layout.grid == grid)
    link_seconds = {name: fastest(trials).link for name, trials in by_schedule.items() if trials}
    return Candidate(name, winner, cluster), link_seconds


class Trial(NamedTuple):
    """A candidate for the reduced problem, and its estimated seconds. placement: the name of its placement."""

    placement: str
    candidate: Candidate
    link: float
    arithmetic: float


def fastest(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the least link time among the trials whose overlapped time is within 2 % of the least."""
    enough = SAME * min(max(trial.link, trial.arithmetic) for trial in trials)
    return min((t for t in trials if max(t.link, t.arithmetic) <= enough), key=lambda t: (t.link, t.arithmetic))


def smaller_problem(problem: Problem, processes: int) -> Problem:
    """A problem of the same kind with at most about MAX_TRIED queries and keys, at least one for each process."""
    shrink = math.ceil(max(problem.n_q, problem.n_k) / max(MAX_TRIED, processes))
    if shrink == 1:
        return problem
    n_q, n_k = (max(processes, n // shrink) for n in (problem.n_q, problem.n_k))
    mask = problem.mask.resized((problem.n_q, problem.n_k), (n_q, n_k))
    return replace(problem, n_q=n_q, n_k=n_k, mask=mask)


def _candidates(problem: Problem, cluster: Cluster) -> Iterator[tuple[str, Candidate]]:
    """Yield the placements with the candidates, for every schedule that can divide the heads."""
    placements = ["contiguous"] if problem.mask.is_full else [*PLACEMENTS]
    if not problem.mask.is_full and problem.n_q == problem.n_k:
        placements.append(BEST)
    for placement in placements:
        placed = _placed(placement, problem, cluster.processes)
        for name in network.SCHEDULES:
            try:
                layouts = network.layouts(name, problem, cluster.processes, placed)
            except RedblueError:
                continue  # this schedule cannot divide the heads among the processes
            for layout in layouts:
                yield placement, Candidate(name, layout, cluster)


def _placed(placement: str, problem: Problem, processes: int) -> str | Placement:
    return best_placement(problem.mask, problem.n_q, processes) if placement == BEST else placement


def network_plan(problem: AnyProblem, cluster: Cluster) -> tuple[NetworkPlan, Problem | None]:
    """Return the plan of the network, and the attention of the busiest process; None: no pair attends."""
    best, schedules = best_candidate(problem, cluster)
    c, traffic = best.layout, best.counted.traffic
    held = max(*c.queries.lengths, *c.keys.lengths) if c.problem.n_q == c.problem.n_k else None
    total = sum(best.pairs)
    plan = NetworkPlan(
        cluster=cluster.name,
        processes=cluster.processes,
        link=cluster.link.name,
        schedule=best.schedule,
        grid=c.grid._asdict(),
        placement=c.queries.name,
        words=traffic.words,
        most_words=traffic.most_words,
        bytes=best.bytes,
        messages=int(traffic.messages.max()),
        peak=int(traffic.peak.max()),
        share=max(best.pairs) * cluster.processes / total if total else 1.0,
        bound=network_bound(c.problem, cluster.processes, work=best.pairs, most_tokens=held),
        candidates=schedules,
        seconds=best.network_seconds,
    )
    return plan, local_problem(c, best.busiest)
