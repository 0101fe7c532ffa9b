"""Plan a problem on a cluster: the schedule, grid and placement with the least time, and the words of one process.

A process's time is at least that of its link and that of its arithmetic, with both overlapped. Every schedule is tried
on every grid and placement. Long sequences are tried at a smaller size of the same kind, and only the winner is counted
at full size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from redblue.base.errors import RedblueError
from redblue.bounds.network import network_bound
from redblue.catalogue.clusters import Cluster
from redblue.catalogue.memories import Memory
from redblue.lab.plans import NetworkPlan
from redblue.machine.network import CountingNetwork
from redblue.masks import Mask
from redblue.masks.rules.selected import selected
from redblue.paged_problem import AnyProblem
from redblue.problem import Problem
from redblue.schedules import network
from redblue.schedules.network import PLACEMENTS, Grid, Layout, Placement
from redblue.schedules.network.balance import best_placement

MOST_TRIED = 1 << 14  # queries and keys of the size at which candidates are compared
BEST = "best"  # stands for best_placement's choice, which differs from size to size


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
        """Bytes that some process sends, or that some process receives, whichever are more."""
        return int(max(self.counted.bytes_sent.max(), self.counted.bytes_received.max()))

    @property
    def network_seconds(self) -> float:
        link = self.cluster.link
        messages = int(self.counted.traffic.messages.max())
        return self.bytes / link.bandwidth_bytes_per_second + messages * link.latency_seconds

    def seconds(self, peak: float | None) -> tuple[float, float]:
        """The larger of the times of link and arithmetic, and their sum. peak: flops per second; None: unknown."""
        arithmetic = max(self.pairs) * flops_per_pair(self.layout.problem) / peak if peak else 0.0
        return max(self.network_seconds, arithmetic), self.network_seconds + arithmetic


def flops_per_pair(problem: Problem) -> int:
    """Two for each product: forward of Q K^T and P V, backward of five products."""
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
    """The attention that one process computes, as if all its keys were there at once; None: it has no pair."""
    row, col, _ = c.grid.place(process)
    mask = local_mask(c, row, col)
    if mask is None:
        return None
    return replace(
        c.problem,
        n_q=len(tokens(c, row, keys=False)),
        n_k=len(tokens(c, col, keys=True)),
        heads=c.problem.heads // c.grid.head_parts,
        kv_heads=c.problem.kv_heads // c.kv_parts,
        mask=mask,
    )


def peak_flops(problem: Problem, machine: Memory) -> float | None:
    """The flops per second of a machine for the problem's type, or for float32, to which narrower types are converted."""
    peaks = machine.peak_flops_per_second
    return peaks.get(problem.dtype) or (peaks.get("float32") if problem.bytes_per_word <= 4 else None)


def best_candidate(problem: AnyProblem, cluster: Cluster) -> tuple[Candidate, dict[str, float]]:
    """Return the layout with the least time, and the least time of each schedule (at the smaller size, if one is tried).

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
    best: dict[str, tuple[tuple[float, float], Grid, str]] = {}
    for placement, candidate in _candidates(small, cluster):
        name, seconds = candidate.schedule, candidate.seconds(peak)
        if name not in best or seconds < best[name][0]:
            best[name] = seconds, candidate.layout.grid, placement
    chosen = min(best, key=lambda name: best[name][0])
    _, grid, placement = best[chosen]
    placed = _placed(placement, problem, cluster.processes)
    winner = network.layout(chosen, problem, cluster.processes, placed, grid)
    return Candidate(chosen, winner, cluster), {name: seconds[0] for name, (seconds, _, _) in best.items()}


def smaller_problem(problem: Problem, processes: int) -> Problem:
    """A problem of the same kind with at most about MOST_TRIED queries and keys, at least one for each process."""
    shrink = math.ceil(max(problem.n_q, problem.n_k) / max(MOST_TRIED, processes))
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
                continue  # the heads cannot be divided among so many processes
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
