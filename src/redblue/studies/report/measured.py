"""Measured here: the compiled kernel on this machine, one shape at a time, beside plan, bound and PyTorch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.catalogue.memories import THIS_MACHINE, Memory
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.plan import DTYPES, cache_bytes
from redblue.lab.planner import plan
from redblue.lab.plans import describe
from redblue.problem import Problem
from redblue.studies.report.calls import Call, best_seconds, computed_in, sizes_of

RUN_SECONDS = 0.3  # the most that one run should take, where half of the measured peak is reached
PEAK_SHARE = 0.5
LARGEST = 2**27  # of the scores, which PyTorch may write, and of the words of Q, K, V and O: half a GiB of float32

SCHEDULES = {"forward": "flash", "backward": "flash_onepass"}  # what the kernels run


@dataclass(frozen=True)
class Run:
    """One key/value head of a shape, as it was run.

    computed_in: the type of the numbers that the kernel multiplies. tiles: of its schedule. pieces: that the keys were
    cut into, besides. seconds: of one call, None if the result was wrong. peak_share: of this machine's measured peak
    of `computed_in`, None if there is none. reads, writes: words that the kernel says it moved. counted_words: of its
    schedule with these tiles. bound_words: the lower bound for a cache of capacity_words, a core's share of the last.
    plan_seconds: the least that the plan of this problem implies. pytorch_why: why there is no time of PyTorch.
    failure: what is wrong with the result or the words, "" if nothing is.
    """

    problem: Problem
    threads: int
    isa: str
    computed_in: str
    schedule: str
    tiles: dict[str, int]
    pieces: int
    seconds: float | None
    peak_share: float | None
    reads: int
    writes: int
    counted_words: int
    capacity_words: int
    bound_words: int
    plan_seconds: float | None
    pytorch_seconds: float | None
    pytorch_why: str
    failure: str

    @property
    def words(self) -> int:
        return self.reads + self.writes

    @property
    def gap(self) -> float | None:
        """Words moved over the lower bound."""
        return self.words / self.bound_words if self.bound_words else None

    @property
    def over_pytorch(self) -> float | None:
        """How many times as fast as PyTorch."""
        return self.pytorch_seconds / self.seconds if self.pytorch_seconds and self.seconds else None


@dataclass(frozen=True)
class Measured:
    """A shape on this machine. cut: how the problem that was run differs. why: why nothing was run, "" if it was."""

    label: str
    run: Run | None
    cut: str = ""
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.run is not None and bool(self.run.failure)

    def to_dict(self) -> dict[str, Any]:
        run = self.run
        more = None
        if run is not None:
            more = asdict(run) | {"problem": describe(run.problem), "words": run.words, "gap": run.gap}
        return {"shape": self.label, "cut": self.cut, "why": self.why, "run": more}


def this_machine_among(memories: Sequence[Memory]) -> Memory | None:
    """The machine that runs this, if it is among them: the only one on which anything can be measured."""
    return next((memory for memory in memories if memory.name == THIS_MACHINE), None)


def measured(label: str, problem: Problem, machine: Memory, known: dict[Problem, Run] | None = None) -> Measured:
    """The problem's kernel, run on `machine`, which must be this one. known: runs to take instead of running again."""
    known = {} if known is None else known
    if problem.direction not in SCHEDULES:
        return Measured(label, None, why=f"no kernel computes {problem.direction} yet")
    try:
        sizes_of(one_head(problem, problem.n_q, problem.n_k))
    except RedblueError as error:
        return Measured(label, None, why=str(error))
    made = smaller(problem, peak(machine, computed_in(problem.dtype)) or peak(machine, "float32") or 1e10)
    if made not in known:
        known[made] = _run(made, machine)
    return Measured(label, known[made], cut_text(problem, made))


def peak(machine: Memory, dtype: str) -> float | None:
    return machine.peak_flops_per_second.get(dtype)


def one_head(problem: Problem, n_q: int, n_k: int) -> Problem:
    """One key/value head and the query heads that share it, with so many queries and keys and the same kind of mask."""
    mask = problem.mask.resized((problem.n_q, problem.n_k), (n_q, n_k))
    return replace(problem, n_q=n_q, n_k=n_k, batch=1, heads=problem.group, kv_heads=1, mask=mask)


def flops(problem: Problem) -> int:
    """Of the products, on the pairs that attend: two products forward, five backward."""
    d, d_v = problem.d, problem.d_v
    per_pair = 2 * (d + d_v) if problem.direction == "forward" else 2 * (3 * d + 2 * d_v)
    return per_pair * problem.heads * problem.batch * problem.mask.nnz(problem.n_q, problem.n_k)


def smaller(problem: Problem, flops_per_second: float) -> Problem:
    """One key/value head, and n halved until a run is short at that rate."""
    n_q, n_k = problem.n_q, problem.n_k
    while True:
        made = one_head(problem, n_q, n_k)
        words = (made.heads * n_q + n_k) * (made.d + made.d_v)
        fits = max(words, made.heads * n_q * n_k) <= LARGEST
        if n_q == n_k == 1 or (fits and flops(made) <= RUN_SECONDS * PEAK_SHARE * flops_per_second):
            return made
        n_q, n_k = max(1, n_q // 2), max(1, n_k // 2)


def cut_text(problem: Problem, made: Problem) -> str:
    """How a problem differs from the one it was made from."""
    parts = ["one key/value head"] if problem.streams > 1 else []
    if (made.n_q, made.n_k) != (problem.n_q, problem.n_k):
        sizes = f"n cut to {made.n_q:,}" if made.n_q == made.n_k else f"n_q, n_k cut to {made.n_q:,}, {made.n_k:,}"
        parts.append(sizes)
    if made.mask != problem.mask:
        parts.append("its window scaled with it")
    return ", ".join(parts) or "whole"


def _run(problem: Problem, machine: Memory) -> Run:
    """Run it once and hold it against float64 and its schedule's count; time it only if it is right."""
    call = Call(problem)
    schedule = schedules.get(SCHEDULES[problem.direction])
    tiles = schedule.make_tiles(problem, {"rows": call.tile.rows, "cols": call.tile.cols})
    cost = schedule.cost(problem, tiles)
    multiplied = computed_in(problem.dtype)
    packed_bytes = next(size for size, dtype in DTYPES.items() if dtype == multiplied)
    # Where the search found no tiles for the cache, the kernel's are larger than it.
    capacity = max(cache_bytes()[1] // packed_bytes, cost.peak)

    start = time.perf_counter()
    reads, writes = call.run()
    first_seconds = time.perf_counter() - start
    failures = [call.wrong()]
    # Pieces of the keys, each with results of its own that are then put together, are not in the schedule.
    if call.tile.pieces == 1 and (reads, writes) != (cost.reads, cost.writes):
        failures.append(f"the schedule counts {cost.words:,} words, the kernel moved {reads + writes:,}")
    failure = "; ".join(filter(None, failures))
    seconds, (pytorch_seconds, why) = None, (None, "not measured")
    if not failure:
        seconds = best_seconds(call.run, first_seconds)
        pytorch_seconds, why = call.pytorch_seconds()
    rate = peak(machine, multiplied)
    return Run(
        problem=problem,
        threads=call.threads,
        isa=cpu.isa().name,
        computed_in=multiplied,
        schedule=schedule.name,
        tiles=tiles._asdict(),
        pieces=call.tile.pieces,
        seconds=seconds,
        peak_share=flops(problem) / seconds / rate if seconds and rate else None,
        reads=reads,
        writes=writes,
        counted_words=cost.words,
        capacity_words=capacity,
        bound_words=lower_bound(problem, capacity).words,
        plan_seconds=plan(problem, machine).seconds,
        pytorch_seconds=pytorch_seconds,
        pytorch_why=why,
        failure=failure,
    )
