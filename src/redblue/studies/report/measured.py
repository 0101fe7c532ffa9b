"""Run the compiled kernel on this machine, one shape at a time, and compare with the plan, the bound and PyTorch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.bounds import lower_bound
from redblue.catalogue.clusters import Cluster
from redblue.catalogue.memories import THIS_MACHINE, Memory
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.plan import cache_bytes
from redblue.lab.planner import plan
from redblue.lab.plans import describe
from redblue.problem import Problem
from redblue.studies.report.calls import Call, best_seconds, computed_in, sizes_of

RUN_SECONDS = 0.3  # a run should take at most this long at PEAK_SHARE of the measured peak
PEAK_SHARE = 0.5
MAX_ELEMENTS = 2**27  # half a GiB of float32; it limits the scores, which PyTorch may store, and Q, K, V and O

SCHEDULES = {"forward": "flash", "backward": "flash_onepass"}  # the schedules that the kernels follow


@dataclass(frozen=True)
class Run:
    """The run of one key/value head of a shape.

    computed_in: the number type in which the kernel multiplies. tiles: the tiles of its schedule. pieces: the number of
    parts into which the keys were split. seconds: time of one call, None if the result was wrong. peak_share: the
    fraction of this machine's measured peak for `computed_in`, None if the peak is not known. reads, writes: the words
    that the kernel reports. counted_words: the words of its schedule with these tiles. capacity_words: a core's share
    of the last cache; bound_words: the lower bound for that capacity. plan_seconds: the shortest time that the plan of
    this problem allows. pytorch_why: the reason why there is no time of PyTorch. failure: the fault of the result or of
    the words, "" if there is none.
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
        """The speed-up over PyTorch."""
        return self.pytorch_seconds / self.seconds if self.pytorch_seconds and self.seconds else None


@dataclass(frozen=True)
class Measured:
    """A shape on this machine.

    cut: the differences between the problem that was run and the shape. why: the reason if nothing was run, else "".
    """

    label: str
    run: Run | None
    cut: str = ""
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.run is not None and bool(self.run.failure)

    def to_dict(self) -> dict[str, Any]:
        run = self.run
        run_data = None
        if run is not None:
            run_data = asdict(run) | {"problem": describe(run.problem), "words": run.words, "gap": run.gap}
        return {"shape": self.label, "cut": self.cut, "why": self.why, "run": run_data}


def this_machine_among(memories: Sequence[Memory | Cluster]) -> Memory | None:
    """Return this machine if it is among the memories, because only this machine can be measured."""
    machines = (memory for memory in memories if isinstance(memory, Memory))
    return next((memory for memory in machines if memory.name == THIS_MACHINE), None)


def measured(label: str, problem: Problem, machine: Memory, known: dict[Problem, Run] | None = None) -> Measured:
    """Run the problem's kernel on `machine`, which must be this machine.

    label: the name of the shape. known: earlier runs by problem, which are reused; new runs are added.
    """
    known = {} if known is None else known
    if problem.direction not in SCHEDULES:
        return Measured(label, None, why=f"no kernel computes {problem.direction} yet")
    try:
        sizes_of(one_head(problem, problem.n_q, problem.n_k))
    except RedblueError as error:
        return Measured(label, None, why=str(error))
    small = smaller(problem, peak(machine, computed_in(problem.dtype)) or peak(machine, "float32") or 1e10)
    if small not in known:
        known[small] = _run(small, machine)
    return Measured(label, known[small], cut_text(problem, small))


def peak(machine: Memory, dtype: str) -> float | None:
    """The machine's peak in FLOP/s for a number type, if it is known."""
    return machine.peak_flops_per_second.get(dtype)


def one_head(problem: Problem, n_q: int, n_k: int) -> Problem:
    """Reduce a problem to one key/value head and its query heads, with n_q queries, n_k keys and a resized mask."""
    mask = problem.mask.resized((problem.n_q, problem.n_k), (n_q, n_k))
    return replace(problem, n_q=n_q, n_k=n_k, batch=1, heads=problem.group, kv_heads=1, mask=mask)


def flops(problem: Problem) -> int:
    """Floating-point operations of the matrix products on attended pairs: two products forward, five backward."""
    d, d_v = problem.d, problem.d_v
    per_pair = 2 * (d + d_v) if problem.direction == "forward" else 2 * (3 * d + 2 * d_v)
    return per_pair * problem.heads * problem.batch * problem.mask.nnz(problem.n_q, problem.n_k)


def smaller(problem: Problem, flops_per_second: float) -> Problem:
    """Reduce a problem to one key/value head, and halve n_q and n_k until a run at this rate is short."""
    n_q, n_k = problem.n_q, problem.n_k
    while True:
        reduced = one_head(problem, n_q, n_k)
        words = (reduced.heads * n_q + n_k) * (reduced.d + reduced.d_v)
        fits = max(words, reduced.heads * n_q * n_k) <= MAX_ELEMENTS
        if n_q == n_k == 1 or (fits and flops(reduced) <= RUN_SECONDS * PEAK_SHARE * flops_per_second):
            return reduced
        n_q, n_k = max(1, n_q // 2), max(1, n_k // 2)


def cut_text(problem: Problem, reduced: Problem) -> str:
    """Describe the differences between a reduced problem and the problem."""
    parts = ["one key/value head"] if problem.streams > 1 else []
    if (reduced.n_q, reduced.n_k) != (problem.n_q, problem.n_k):
        n_q, n_k = reduced.n_q, reduced.n_k
        parts.append(f"n cut to {n_q:,}" if n_q == n_k else f"n_q, n_k cut to {n_q:,}, {n_k:,}")
    if reduced.mask != problem.mask:
        parts.append("its window scaled with it")
    return ", ".join(parts) or "whole"


def _run(problem: Problem, machine: Memory) -> Run:
    """Run a problem once and compare with float64 and with its schedule's count; time it only if both agree."""
    call = Call(problem)
    schedule = schedules.get(SCHEDULES[problem.direction])
    tiles = schedule.make_tiles(problem, {"rows": call.tile.rows, "cols": call.tile.cols})
    cost = schedule.cost(problem, tiles)
    multiplied = computed_in(problem.dtype)
    packed_bytes = BYTES_PER_WORD[multiplied]
    # If no tiles fit the cache, the kernel's tiles are larger than the cache, and the bound must allow for them.
    capacity = max(cache_bytes()[1] // packed_bytes, cost.peak)

    start = time.perf_counter()
    reads, writes = call.run()
    first_seconds = time.perf_counter() - start
    failures = [call.wrong()]
    # The schedule does not cut keys into pieces, whose results the kernel merges: words agree only for one piece.
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
