"""Compile kernels for later calls into Triton's cache on disk, on all cores, without touching the device.

A single process compiles kernels one after another, which on a fresh machine takes most of a benchmark's time.
Therefore worker processes make each call with every candidate of its plan. The arrays are on the CPU and never read or
written; each launch only compiles its kernel. FFPA's kernels are compiled the same way, with every configuration that
its tuning will time, but on arrays on the device, which its code needs.

As a script (`python -m benchmarks.gpu.ahead`), it compiles for an H100 on a machine without a GPU. The folder
TRITON_CACHE_DIR can then be copied to the machine with the card, which must have the same version of Triton.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

from benchmarks.gpu.calls import FFPA, OURS, Call, plan
from benchmarks.gpu.worker import ignore_interrupts

SPARE_CORES = 2  # for the measuring process and the parent process
SHARES = 4  # processes that divide a call's candidates
HEADS_OF_PEERS = 16  # of a peer's arrays, which take memory on the device; the kernels are the same as for 32 heads

Task = tuple[str, Call, int, int, Any]  # contender, call, its share, shares, card


class Ahead:
    """Compiles in the background from `start` to the end of its context."""

    def __init__(self, card: Any, workers: int | None = None) -> None:
        self.card = card
        self.workers = workers or max(1, (os.cpu_count() or 1) - SPARE_CORES)
        self.began = time.monotonic()
        self.results: dict[Call, list[Any]] = {}

    @classmethod
    def on_device(cls) -> Ahead:
        from redblue.kernels.gpu.planning.card import card_of

        return cls(card_of(torch.device("cuda")))

    def __enter__(self) -> Ahead:
        self.pool = multiprocessing.get_context("spawn").Pool(self.workers, ignore_interrupts)
        return self

    def __exit__(self, *failure: object) -> None:
        self.pool.terminate()

    def start(self, todo: Sequence[tuple[Call, Sequence[str]]]) -> None:
        """Compile for these calls and contenders, in order."""
        for call, names in todo:
            for task in tasks(call, names, self.card, self.workers):
                self.results.setdefault(call, []).append(self.pool.apply_async(compiled, (task,)))

    def wait(self, call: Call, seconds: float) -> None:
        """Wait until the kernels of the call are compiled, or the time is over."""
        end = time.monotonic() + seconds
        for result in self.results.get(call, []):
            result.wait(max(0.0, end - time.monotonic()))

    def summary(self) -> str:
        every = [result for results in self.results.values() for result in results]
        done = [result for result in every if result.ready()]
        kernels = sum(result.get() for result in done if result.successful())
        tasks = f"{len(done)} of {len(every)} tasks, {self.workers} at once"
        return f"compiled ahead: {kernels} launches in {tasks}, {time.monotonic() - self.began:.0f} s"


def side_by_side(make: Callable[[Any], object], todo: Sequence[Any], seconds: float, console: Console) -> int:
    """Run make(task) in worker processes until time is up, once for equal tasks.

    Returns the number of finished tasks.
    """
    todo, start, done = list(dict.fromkeys(todo)), time.monotonic(), 0
    workers = min(max(1, (os.cpu_count() or 1) - SPARE_CORES), len(todo))
    if not workers:
        return 0
    with multiprocessing.get_context("spawn").Pool(workers, ignore_interrupts) as pool:  # its end ends all workers
        results = [pool.apply_async(make, (task,)) for task in todo]
        for result in results:
            result.wait(max(0.0, start + seconds - time.monotonic()))
            done += result.ready()
    took = time.monotonic() - start
    console.print(f"compiled ahead: {done} of {len(todo)} tasks in {took:.0f} s, {workers} at once", highlight=False)
    return done


def tasks(call: Call, names: Sequence[str], card: Any, workers: int) -> Iterator[Task]:
    if {*names} & {*OURS}:
        for share in range(SHARES):
            yield OURS[0], call, share, SHARES, card
    if FFPA in names:
        for share in range(workers):
            yield FFPA, call, share, workers, card


def compiled(task: Task) -> int:
    """Compile the kernels of a task; return the number of launches. The measurement will report failures."""
    name, call, share, shares, card = task
    with warm() as launches, contextlib.suppress(Exception):
        if name == FFPA:
            _peer(name, call, share, shares)
        else:
            _ours(call, share, shares, card)
    return len(launches)


@contextlib.contextmanager
def warm() -> Iterator[list[str]]:
    """A context in which launches only compile their kernels. Yields the list of names of launched kernels."""
    from triton.runtime import jit

    launch, launched = jit.JITFunction.run, []

    def only_compile(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launched.append(self.__name__)
        return launch(self, *arguments, grid=grid, warmup=True, **options)

    jit.JITFunction.run = only_compile  # type: ignore[method-assign]
    try:
        yield launched
    finally:
        jit.JITFunction.run = launch  # type: ignore[method-assign]


def _ours(call: Call, share: int, shares: int, card: Any) -> None:
    """Make the call with every candidate of this share."""
    from redblue.kernels.gpu.planning.card import planning_for
    from redblue.kernels.gpu.planning.fit import standing_in
    from redblue.op.pytorch import gpu, ops

    attend, number, counts = _call(call), share, [share + 1]
    while number < max(counts):
        with contextlib.ExitStack() as stack:
            for context in (contextlib.suppress(Exception), standing_in(card.arch), planning_for(card)):
                stack.enter_context(context)
            stack.enter_context(ops.substituted(by=gpu))
            stack.enter_context(candidate(number, counts))
            attend()
        number += shares


@contextlib.contextmanager
def candidate(number: int, counts: list[int] | None = None) -> Iterator[None]:
    """A context in which untuned calls run the candidate of this number of their plan, or the last candidate.

    counts: a list to which each call appends its number of candidates.
    """
    from redblue.kernels.gpu.planning.plan import candidates
    from redblue.op.pytorch import gpu

    usual = gpu.plan

    def chosen(*request: Any) -> Any:
        launches = candidates(*request)
        if counts is not None:
            counts.append(len(launches))
        return launches[min(number, len(launches) - 1)]

    gpu.plan = chosen
    try:
        yield
    finally:
        gpu.plan = usual


def _call(call: Call) -> Callable[[], object]:
    """The call on CPU arrays that are never read or written, and so take no memory."""
    import redblue as rb

    dtype = getattr(torch, call.dtype)

    def array(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    if call.page:
        pages = -(-call.n // call.page)
        table, lengths = torch.arange(call.batch * pages).view(call.batch, pages), torch.full((call.batch,), call.n)
        keys, values = (array(call.batch * pages, call.page, call.kv_heads, width) for width in (call.d, call.values))
        q = array(call.batch, call.n_q, call.heads, call.d)
        return lambda: rb.attention_paged(q, keys, values, table, lengths)
    q = array(call.batch, call.heads, call.n_q, call.d)
    k, v = (array(call.batch, call.kv_heads, call.n, width) for width in (call.d, call.values))
    if call.direction == "forward":
        return lambda: rb.attention(q, k, v, mask=call.mask)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    dout = array(call.batch, call.heads, call.n_q, call.values)
    return lambda: torch.autograd.grad(rb.attention(*leaves, mask=call.mask), leaves, dout)


def _peer(name: str, call: Call, share: int, shares: int) -> None:
    """Make the call on the device with every configuration of this share that the peer's tuning will time."""
    from triton.runtime import autotuner

    from benchmarks.gpu.calls import inputs
    from benchmarks.gpu.peers import contender

    tuner = autotuner.Autotuner
    pruned = tuner.prune_configs
    tuner.do_bench = property(lambda self: _once, lambda self, value: None)  # type: ignore[assignment]
    tuner.check_disk_cache = lambda self, key, configs, measure: measure()  # type: ignore[assignment]  # keep no times
    tuner.prune_configs = lambda self, kwargs: pruned(self, kwargs)[share::shares] or pruned(self, kwargs)[:1]  # type: ignore
    case = replace(call, heads=min(call.heads, HEADS_OF_PEERS), kv_heads=min(call.kv_heads, HEADS_OF_PEERS))
    contender(name, case, inputs(case, "cuda"))()
    torch.cuda.empty_cache()


def _once(run: Callable[[], object], quantiles: object = None) -> tuple[float, ...]:
    run()
    return 0.0, 0.0, 0.0


def main() -> None:
    from benchmarks.common.options import at_least, chosen, parser_of
    from redblue.kernels.gpu.planning.card import Card

    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit (%(default)s)")
    parser.add_argument("--only", default="", help="only calls whose title contains this text")
    options = parser.parse_args()
    calls = chosen(parser, options.only, plan(), lambda entry: entry[0].title)
    todo = [(call, [x for x in names if x in OURS]) for call, names in calls]
    end = time.monotonic() + options.seconds
    with Ahead(Card(), options.jobs) as ahead:  # an H100
        ahead.start(todo)
        for call, _ in todo:
            ahead.wait(call, end - time.monotonic())
            print(f"{call.title}: {ahead.summary()}", flush=True)
            if time.monotonic() > end:
                break


if __name__ == "__main__":
    main()
