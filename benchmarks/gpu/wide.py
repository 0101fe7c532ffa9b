"""Time wide heads (d of 192 to 1024) on a GPU: tiles of each product, then whole calls and the unfused expression.

Every variant is checked against float64 before it is timed, at an odd size with the same compiled kernels. Whole calls
are also checked at the timed size, first and last head. A worker process makes the calls; one that hangs or crashes
costs one row. Each row is appended to --out at once. --compile compiles all variants for sm_90 without a GPU.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from benchmarks.common.gate import scores
from redblue.kernels.cpu.call import SUMS, Sizes, array_forms
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.by_tma import GRADIENTS, GRADIENTS_EARLY, Choice, Tile
from redblue.kernels.gpu.planning.by_tma import SUMS as NARROW
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import plan
from redblue.kernels.gpu.spilled.tma import launches
from redblue.kernels.gpu.table import KERNELS

# SMALL is no multiple of a tile, but a multiple of 16, for which Triton specializes.
N, HEADS, SMALL, DTYPE = 8192, 32, 784, "bfloat16"
WORST = 0.02  # relative error; products in bfloat16 have 0.005 to 0.01
REPEATS, SECONDS_PER_JOB, COMPILERS = 5, 25, 12


class Job(NamedTuple):
    """what: a single kernel ("p", "ds", "both", "row", "key"), "forward", "backward", or a peer's name."""

    what: str
    choice: Choice | None = None
    d: int = 512
    causal: bool = False
    n: int = N
    heads: int = HEADS
    d_v: int = 0
    direction: str = "forward"
    title: str = ""

    @property
    def tile(self) -> Tile | None:
        choice, name = self.choice, {"both": "p"}.get(self.what, self.what)
        return getattr(choice, name, None) if choice else None

    @property
    def row(self) -> dict[str, Any]:
        shown = {name: x for name, x in self._asdict().items() if name != "choice" and x != ""}
        if self.choice:
            tile = self.tile
            shown["choice"] = tile._asdict() if tile else _shown(self.choice)
        return shown


def _shown(choice: Choice) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, tuple) else x for name, x in choice._asdict().items()}


# Variants ----------------------------------------------------------------------------------------------------------

BEST = Choice()
P_TILES = [
    Tile(),
    BEST.p,
    BEST.p._replace(stages=2, parts=1),
    BEST.p._replace(depth=32, stages=6),
    BEST.p._replace(parts=4),
    Tile(parts=2, stages=4),
    BEST.p._replace(resident=0),
]
SUM_TILES = [Tile(stages=4), Tile(cols=128, warps=4, stages=3), Tile(rows=64, cols=256, warps=4, stages=2)]
DS_TILES = [
    GRADIENTS_EARLY,
    GRADIENTS_EARLY._replace(parts=4),
    Tile(resident=0, early=True),
    BEST.p._replace(stages=2),
    Tile(resident=0, stages=3, parts=4, early=True),
    GRADIENTS,
    Tile(),
]
BOTH_TILES = [Tile(cols=128, warps=4)]
STREAMS = (1, 8)
LENGTHS = (512, 1024, 2048, 4096, 16384)


def kernel_jobs() -> Iterator[Job]:
    """Jobs for every single kernel with every tile, the most informative first."""
    for tile in DS_TILES:
        yield Job("ds", BEST._replace(ds=tile), direction="backward")
    for tile in P_TILES:
        yield Job("p", BEST._replace(p=tile))
    for tile in SUM_TILES:
        yield Job("row", BEST._replace(row=tile))
        yield Job("key", BEST._replace(key=tile), direction="backward")
    for tile in BOTH_TILES:
        yield Job("both", BEST._replace(p=tile, ds=None), direction="backward")
    yield Job("bmm")


def call_jobs(best: Choice, both: Tile | None) -> Iterator[Job]:
    """Whole calls with the best tiles of each kernel. both: the best tile of the kernel that computes P and dS."""
    narrow = best._replace(row=NARROW, key=NARROW)
    for causal in (False, True):
        yield Job("forward", best, causal=causal)
        yield Job("backward", best, causal=causal, direction="backward")
    for d, d_v, choice in (
        (320, 320, narrow),
        (576, 512, narrow),
        (1024, 1024, best),
        (256, 256, best),
        (192, 192, best),
    ):
        yield Job("forward", choice, d=d, d_v=d_v)
        yield Job("backward", choice, d=d, d_v=d_v, direction="backward")
    for n in LENGTHS:
        heads = HEADS * N // n
        for direction in ("forward", "backward"):
            yield Job(direction, best._replace(streams=min(heads, max(4, 16384 // n))), n=n, direction=direction)
            if n < N:
                yield Job("planned", n=n, direction=direction)
    for d in (192, 256):
        for direction in ("forward", "backward"):
            yield Job("planned", d=d, direction=direction)
    for n in (512, 2048):
        for direction in ("forward", "backward"):
            yield Job(direction, best, n=n, heads=8, direction=direction)
            yield Job("planned", n=n, heads=8, direction=direction)
    for direction in ("forward", "backward"):
        yield Job("planned", direction=direction)
        yield Job("unfused", direction=direction)
        yield Job("efficient", direction=direction)
        yield Job("unfused", d=1024, direction=direction)
    yield Job("efficient", causal=True)
    yield Job("efficient", causal=True, direction="backward")
    yield Job("math")
    yield Job("math", direction="backward")
    for streams in STREAMS:
        yield Job("forward", best._replace(streams=streams))
        yield Job("backward", best._replace(streams=streams), direction="backward")
    if both:
        fused = best._replace(p=both, ds=None)
        yield Job("backward", fused, direction="backward", title="P and dS in one kernel")


# In the worker -----------------------------------------------------------------------------------------------------


def tensors(job: Job, device: str, n: int, heads: int) -> dict[str, Any]:
    """The arrays of a task."""
    d_v = job.d_v or job.d
    forms = array_forms(Sizes((1,), heads, 1, n, n, job.d, d_v), DTYPE, "backward")
    torch.manual_seed(1)
    arrays = {}
    for name, (shape, number) in forms.items():
        shape, dtype = shape[:-1] if name in SUMS else shape, getattr(torch, number)
        given = name in ("q", "k", "v", "dout") and device != "meta"
        arrays[name] = (torch.randn if given else torch.empty)(shape, dtype=dtype, device=device)
    return arrays


def task_of(job: Job, arrays: dict[str, Any]) -> Task:
    batch, heads, n, d = arrays["q"].shape
    sizes = Sizes((batch,), heads, 1, n, n, d, arrays["v"].shape[-1])
    return Task.of(sizes=sizes, end=1 if job.causal else None, **arrays)


def runs_of(job: Job, task: Task) -> tuple[list[Run], list[Run]]:
    """All launches that the job needs, and the launches that it times."""
    assert job.choice
    ahead = launches.forward(task, job.choice)
    last = ahead if job.direction == "forward" else launches.backward(task, job.choice)
    if job.what in ("forward", "backward"):
        return (ahead if job.direction == "backward" else []) + last, last
    kernel = {"p": "score_tiles", "ds": "score_tiles", "row": "row_sums", "key": "key_sums", "both": "p_and_ds"}
    chosen = [x for x in last if (x.kernel.__name__, x.arguments.get("KIND", job.what)) == (kernel[job.what], job.what)]
    if job.what == "key":
        chosen = chosen[::2]  # dV
    return (ahead if job.direction == "backward" else []) + last, chosen


def exact(job: Job, arrays: dict[str, Any], head: int) -> dict[str, torch.Tensor]:
    """Results in float64, for one head."""
    q, k, v = (arrays[name][0, head].double().requires_grad_() for name in ("q", "k", "v"))
    s = scores(q, k, job.causal)
    out = torch.softmax(s, -1) @ v
    results = {"out": out, "lse": torch.logsumexp(s, -1)}
    if job.direction == "backward":
        grads = torch.autograd.grad(out, (q, k, v), arrays["dout"][0, head].double())
        results |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return {name: x.detach() for name, x in results.items()}


def errors(job: Job, arrays: dict[str, Any]) -> dict[str, float]:
    """The largest relative error of each result, over the first and the last head."""
    worst: dict[str, float] = {}
    for head in (0, arrays["q"].shape[1] - 1):
        for name, x in exact(job, arrays, head).items():
            error = float((arrays[name][0, head].double() - x).norm() / x.norm())
            worst[name] = max(worst.get(name, 0.0), error if math.isfinite(error) else math.inf)
    return {name: float(f"{x:.1e}") for name, x in worst.items()}


def checked(job: Job, n: int, heads: int, device: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The arrays after one call, and its errors. Raises ValueError if they are too large."""
    arrays = tensors(job, device, n, heads)
    for run in runs_of(job, task_of(job, arrays))[0]:
        run()
    found = errors(job, arrays)
    if max(found.values()) > WORST:
        raise ValueError(f"wrong at n {n}: {found}")
    return arrays, found


def seconds_of(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median time of a call on the device."""
    call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


def flops(job: Job) -> float:
    d_v = job.d_v or job.d
    product = 2 * job.n**2 * job.heads / (2 if job.causal else 1)
    widths = {"p": job.d, "ds": d_v, "both": job.d + d_v, "row": d_v, "key": d_v}
    whole = job.d + d_v if job.direction == "forward" else 3 * job.d + 2 * d_v
    return product * widths.get(job.what, whole)


def measured(job: Job) -> dict[str, Any]:
    """One row of the results."""
    if job.what == "bmm":
        return _bmm(job)
    if job.what == "planned":
        return _planned(job)
    if job.choice is None:
        return _peer(job)
    checked(job, SMALL, 3, "cuda")
    checked(job._replace(causal=not job.causal), SMALL, 3, "cuda")
    row: dict[str, Any] = {}
    if job.what in ("forward", "backward"):
        arrays, row["errors"] = checked(job, job.n, job.heads, "cuda")
    else:
        arrays = tensors(job, "cuda", job.n, job.heads)
    every, timed = runs_of(job, task_of(job, arrays))
    for run in every:
        run()
    seconds = seconds_of(lambda: [run() for run in timed])
    return row | {"launches": len(timed), "ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}


def _bmm(job: Job) -> dict[str, Any]:
    """The four kinds of products by PyTorch alone, in TFLOP/s."""
    heads = 4
    q, p = (torch.randn(heads, job.n, x, device="cuda", dtype=torch.bfloat16) for x in (job.d, job.n))
    work = 2 * job.n**2 * job.d * heads / 1e12
    into, back = torch.empty_like(p), torch.empty_like(q)
    products = {
        "Q K^T": lambda: torch.bmm(q, q.mT, out=into),
        "P V": lambda: torch.bmm(p, q, out=back),
        "P^T dO": lambda: torch.bmm(p.mT, q, out=back),
    }
    return {"tflops": {name: work / seconds_of(call) for name, call in products.items()}}


def _planned(job: Job) -> dict[str, Any]:
    """The launches of the other kernels, as planned without timing."""
    arrays = tensors(job, "cuda", job.n, job.heads)
    task = task_of(job, arrays)
    runs, launch = [], None
    for direction in dict.fromkeys(("forward", job.direction)):
        launch = plan(direction, task.sizes, DTYPE, Card())
        runs = getattr(KERNELS[launch.kernel], direction)(task, launch)
        for run in runs:
            run()
    found = errors(job, arrays)
    seconds = seconds_of(lambda: [run() for run in runs])
    return {"errors": found, "launch": repr(launch), "ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}


def _peer(job: Job) -> dict[str, Any]:
    arrays = tensors(job, "cuda", job.n, job.heads)
    q, k, v = (arrays[name].requires_grad_(job.direction == "backward") for name in ("q", "k", "v"))
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    scale = job.d**-0.5
    if job.what == "unfused":

        def forward() -> Any:
            return torch.softmax(torch.matmul(q * scale, k.mT), -1) @ v
    else:
        backend = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[job.what]

        def forward() -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=job.causal)

    if job.direction == "forward":
        seconds = seconds_of(forward, 3)
    else:
        out = forward()
        seconds = seconds_of(lambda: torch.autograd.grad(out, (q, k, v), arrays["dout"], retain_graph=True), 3)
    return {"ms": seconds * 1e3, "tflops": flops(job) / seconds / 1e12}


def work(jobs: Connection) -> None:
    """Answer jobs with rows until the pipe closes."""
    while True:
        try:
            job = jobs.recv()
        except EOFError:
            return
        try:
            row = measured(job)
        except Exception as error:  # of any kind: it becomes this job's row
            row = {"error": f"{type(error).__name__}: {error}"[:600], "at": traceback.format_exc()[-400:]}
        torch.cuda.empty_cache()
        jobs.send(row)


# In the parent -----------------------------------------------------------------------------------------------------


class Worker:
    """A process that measures. It is replaced if a job hangs, crashes or breaks the device's context."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def __call__(self, job: Job, seconds: float) -> dict[str, Any]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=work, args=(other,), daemon=True)
            self.process.start()
            other.close()
            seconds += 15  # PyTorch's start
        try:
            self.pipe.send(job)
            if self.pipe.poll(seconds):
                row = self.pipe.recv()
                if "CUDA" in row.get("error", "") or "Triton Error" in row.get("error", ""):
                    self.stop()
                return row
            row = {"error": f"no answer in {seconds:.0f} s"}
        except (EOFError, OSError) as error:
            row = {"error": f"the process died: {error!r}"}
        self.stop()
        return row

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.join()
        self.process = None


def compiled(job: Job) -> str:
    """Compile a job's kernels for sm_90, without a GPU, into Triton's cache. Returns their largest resources."""
    from redblue.kernels.gpu.planning.fit import standing_in

    shared = 0
    try:
        with standing_in(90):
            for case in (job, job._replace(causal=not job.causal)):
                runs = runs_of(case, task_of(case, tensors(case, "meta", case.n, case.heads)))[0]
                for run in {(x.kernel.__name__, str(x.arguments.get("KIND")), x.grid): x for x in runs}.values():
                    made = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings)
                    shared = max(shared, made.metadata.shared)
    except Exception as error:  # the measurement of the job will report it
        return f"{type(error).__name__}: {error}"
    return f"{shared:,} bytes of shared memory" + ("" if shared <= 227 << 10 else ": TOO MUCH")


def compile_all(jobs: list[Job], seconds: float, workers: int) -> None:
    """Compile jobs side by side, for at most `seconds`."""
    stop = time.monotonic() + seconds
    jobs = [job for job in jobs if job.choice]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        results = [(job, pool.apply_async(compiled, (job,))) for job in jobs]
        with contextlib.suppress(multiprocessing.TimeoutError):
            for job, result in results:
                print("compiled", json.dumps(job.row), result.get(max(0.0, stop - time.monotonic())), flush=True)


def best_of(rows: list[tuple[Job, dict[str, Any]]]) -> tuple[Choice, Tile | None]:
    """The fastest tiles of each kernel; and the tile of the kernel for both P and dS, if that kernel is faster."""
    best = {}
    for job, row in rows:
        if job.tile and "tflops" in row and row["tflops"] > best.get(job.what, (0.0, None))[0]:
            best[job.what] = row["tflops"], job.tile
    chosen = {name: tile for name, (_, tile) in best.items() if name != "both"}
    return BEST._replace(**chosen), best.get("both", (0, None))[1]


def main(
    out: Annotated[Path, typer.Option(help="The file to which rows are appended.")] = Path("wide.jsonl"),
    budget: Annotated[float, typer.Option(help="Seconds in all.")] = 120.0,
    compile_only: Annotated[bool, typer.Option("--compile", help="Only compile, without a GPU.")] = False,
) -> None:
    """Measure wide heads."""
    start, worker, rows = time.monotonic(), Worker(), []
    kernels = list(kernel_jobs())
    defaults = list(call_jobs(BEST, BOTH_TILES[0]))
    if compile_only:
        compile_all(kernels + defaults, 1e6, 1)
        return
    compile_all(kernels + defaults, min(40.0, budget / 3), min(COMPILERS, os.cpu_count() or 1))

    def measure(jobs: list[Job], until: float) -> None:
        for job in jobs:
            left = start + until - time.monotonic()
            if left < 3:
                return
            row = worker(job, min(SECONDS_PER_JOB, left))
            rows.append((job, row))
            line = json.dumps({"seconds": round(time.monotonic() - start, 1)} | job.row | row)
            print(line, flush=True)
            with out.open("a") as file:
                file.write(line + "\n")

    measure(kernels, budget * 0.6)
    measure(list(call_jobs(*best_of(rows))), budget)
    worker.stop()
    sys.exit(not any("tflops" in row for _, row in rows))


if __name__ == "__main__":
    typer.run(main)
