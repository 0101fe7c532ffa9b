"""Check and time the backward kernels for Hopper GPUs on such a card, compared with PyTorch's.

Each variant and head dimension runs in a separate process with a time limit, so that a hang costs one row. A process
first compares small odd sizes with float64 (full, causal and windowed masks, shared key heads, strides, NaN in keys
that no query attends), then the first and last head at the timed size. Then it times the variant in alternation with
PyTorch's backends. Rows are JSON lines, each written at once. `--compile` compiles all variants for sm_90 without a
GPU.

    python -m benchmarks.gpu.hopper_backward --out hopper_backward.jsonl --budget 120
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.options import chosen, parser_of
from redblue.kernels.gpu.hopper.backward import backward
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.sizes import Sizes
from redblue.schedules.flash_onepass import BackwardTiles

LIMIT = 25.0  # seconds of a process
N, HEADS = 8192, 32
ROUNDS = 8
MAX_RATIO = 2.0  # of the error to the error of the unfused expression in the same type


class Variant(NamedTuple):
    """Tiles and settings of a launch."""

    rows: int
    cols: int = 128
    stages: int = 2

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.cols}, {self.stages} stages"

    def runs(self, task: Task) -> list[Any]:
        return backward(task, Launch("flash_onepass", BackwardTiles(self.rows, self.cols), 8, self.stages))


# The most important first; (d, variant)
PLANNED = [
    (128, Variant(64)),
    (64, Variant(128)),
    (128, Variant(64, stages=3)),
    (64, Variant(64)),
    (64, Variant(128, stages=3)),
]


def task_of(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, band: Band, results: Any) -> Task:
    """The backward task of these tensors, which writes results: dq, dk, dv."""
    (batch, heads, n_q, d), (_, kv_heads, n_k, d_v) = q.shape, v.shape
    sizes = Sizes((batch,), kv_heads, heads // kv_heads, n_q, n_k, d, d_v)
    dq, dk, dv = results
    inputs = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, "first": band.first, "end": band.end}
    return Task.of(sizes=sizes, **inputs, dq=dq, dk=dk, dv=dv, delta=torch.empty_like(lse))


class Band(NamedTuple):
    """A mask: query i attends keys i + first .. i + end - 1."""

    name: str
    first: int | None = None
    end: int | None = None

    def attends(self, n_q: int, n_k: int, device: str) -> Tensor:
        i, j = torch.arange(n_q, device=device)[:, None], torch.arange(n_k, device=device)[None, :]
        mask = torch.ones(n_q, n_k, dtype=torch.bool, device=device)
        if self.first is not None:
            mask &= j >= i + self.first
        if self.end is not None:
            mask &= j < i + self.end
        return mask


class Case(NamedTuple):
    """A small call. strided: arrays are (batch, rows, heads, columns) in memory."""

    n_q: int
    n_k: int
    heads: int
    kv_heads: int
    band: Band
    dtype: torch.dtype = torch.bfloat16
    strided: bool = False


FULL, CAUSAL = Band("full"), Band("causal", None, 1)
CASES = [
    Case(256, 256, 2, 2, FULL),
    Case(256, 256, 2, 2, CAUSAL, torch.float16),
    Case(333, 517, 4, 2, FULL),
    Case(333, 517, 4, 2, Band("causal to the end", None, 185), torch.float16, strided=True),
    Case(517, 333, 4, 1, CAUSAL),
    Case(700, 650, 2, 1, Band("window", -100, 30)),
    Case(200, 900, 2, 2, Band("window with unattended keys", 70, 140), torch.float16),
    Case(1, 77, 2, 1, FULL),
]


def flop(n: int, d: int, heads: int, band: Band) -> float:
    """Five products."""
    pairs = n * n if band is FULL else n * (n + 1) // 2
    return 2 * heads * pairs * 5 * d


def exact(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float, mask: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """out, lse, dq, dk, dv of the unfused expression in this type; heads of q that share a key head are summed."""
    q, k, v, dout = (x.to(dtype) for x in (q, k, v, dout))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2) * scale).masked_fill_(~mask, float("-inf"))
    lse = torch.logsumexp(s.float() if dtype != torch.float64 else s, -1)
    p = torch.where(mask, torch.exp(s - lse[..., None].to(dtype)), 0.0)
    del s
    out = p @ v
    dv = p.transpose(-1, -2) @ dout
    ds = p * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True))
    del p
    dq, dk = ds @ k * scale, ds.transpose(-1, -2) @ q * scale
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
    return [out, lse, dq, dk, dv]


def errors(results: list[Tensor], right: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in zip(results, right, strict=True)]


def check_small(variant: Variant, d: int, case: Case) -> dict[str, Any]:
    def filled(heads: int, n: int) -> Tensor:
        x = torch.randn(2, n, heads, d, device="cuda").to(case.dtype).transpose(1, 2)
        return x if case.strided else x.contiguous()

    torch.manual_seed(1)
    q, dout = (filled(case.heads, case.n_q) for _ in range(2))
    k, v = (filled(case.kv_heads, case.n_k) for _ in range(2))
    scale, mask = d**-0.5, case.band.attends(case.n_q, case.n_k, "cuda")
    out, lse, *right = exact(q, k, v, dout, scale, mask, torch.float64)
    unfused = errors(exact(q, k, v, dout, scale, mask, case.dtype)[2:], right)
    unattended = ~mask.any(0)
    k[:, :, unattended], v[:, :, unattended] = float("nan"), float("nan")
    results = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    task = task_of(q, k, v, out.to(case.dtype), lse.float(), dout, case.band, results)
    for run in variant.runs(task):
        run()
    own_errors = errors(results, right)
    good = all(a <= MAX_RATIO * max(b, 1e-3) for a, b in zip(own_errors, unfused, strict=True))
    return {"case": str(case), "errors": own_errors, "unfused": unfused, "good": good}


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """out and lse, by PyTorch's flash kernel."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return out, lse


def peers(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool) -> dict[str, Callable[[], object]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # pyright: ignore[reportMissingImports]

    calls: dict[str, Callable[[], object]] = {}
    for name, backend in (("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION), ("sdpa-flash", SDPBackend.FLASH_ATTENTION)):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
            calls[name] = lambda out=out, leaves=leaves: torch.autograd.grad(out, leaves, dout, retain_graph=True)
    return calls


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of each call, by the device's events. The queue is filled first, so that no launch delays a call."""
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)
            start.record()
            call()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [a.elapsed_time(b) for a, b in pairs] for name, pairs in events.items()}


def measure(variant: Variant, d: int, band: Band) -> dict[str, Any]:
    """Errors of the first and last head at the full size, and times."""
    torch.manual_seed(2)
    q, k, v, dout = (torch.randn(1, HEADS, N, d, device="cuda").bfloat16() for _ in range(4))
    causal, scale = band is CAUSAL, d**-0.5
    out, lse = forward(q, k, v, causal)
    results = [torch.empty_like(x) for x in (q, k, v)]
    task = task_of(q, k, v, out, lse, dout, band, results)
    runs = variant.runs(task)

    def ours() -> None:
        for run in runs:
            run()

    ours()
    torch.cuda.synchronize()
    mask, own_errors, unfused = band.attends(N, N, "cuda"), [], []
    for head in (slice(0, 1), slice(HEADS - 1, HEADS)):
        arrays = [x[:, head] for x in (q, k, v, dout)]
        right = exact(*arrays, scale, mask, torch.float64)[2:]  # pyright: ignore[reportCallIssue]
        own_errors += errors([x[:, head] for x in results], right)
        unfused += errors(exact(*arrays, scale, mask, torch.bfloat16)[2:], right)  # pyright: ignore[reportCallIssue]
    good = all(a <= MAX_RATIO * b for a, b in zip(own_errors, unfused, strict=True))
    row: dict[str, Any] = {"errors": own_errors, "unfused": unfused, "good": good}
    times = in_turns(
        {"ours": ours, **dict(zip(("prepare", "fused", "finish"), runs, strict=True)), **peers(q, k, v, dout, causal)}
    )
    row["ms"] = {name: round(statistics.median(each), 4) for name, each in times.items()}
    row["least_ms"] = {name: round(min(each), 4) for name, each in times.items()}
    work = flop(N, d, HEADS, band)
    row["tflops"] = {
        name: round(work / ms / 1e9, 1) for name, ms in row["ms"].items() if name not in ("prepare", "finish")
    }
    return row


def emit(out: str, row: dict[str, Any]) -> None:
    with Path(out).open("a") as file:
        file.write(json.dumps(row) + "\n")
    if "tflops" in row:
        print(
            f"{row['name']:26} d {row['d']:3} {row['mask']:7} good {row['good']}  TFLOP/s {row['tflops']}", flush=True
        )
        print(f"{'':26} ms {row['ms']} errors {[f'{x:.1e}' for x in row['errors']]}", flush=True)
    else:
        print({key: value for key, value in row.items() if key != "trace"}, flush=True)


def process(variant: Variant, d: int, out: str) -> None:
    """All rows of one variant and head dimension."""
    base = {"name": variant.name, "d": d, "device": torch.cuda.get_device_name()}
    start = time.monotonic()
    try:
        for case in CASES:
            row = check_small(variant, d, case)
            if not row["good"]:
                emit(out, base | {"step": "check"} | row)
        emit(out, base | {"step": "checks done", "seconds": round(time.monotonic() - start, 1)})
        for band in (FULL, CAUSAL):
            emit(out, base | {"mask": band.name, "step": "time"} | measure(variant, d, band))
    except Exception as error:
        emit(out, base | {"step": "failed", "error": repr(error)[:600], "trace": traceback.format_exc()[-3000:]})


def run_all(planned: list[tuple[int, Variant]], out: str, budget: float) -> None:
    context = multiprocessing.get_context("fork")  # from a parent that has imported everything but not used the GPU
    start = time.monotonic()
    for d, variant in planned:
        left = budget - (time.monotonic() - start)
        if left < 8:
            print(f"no time left for {variant.name}, d {d}", flush=True)
            continue
        child = context.Process(target=process, args=(variant, d, out))
        child.start()
        child.join(min(LIMIT, left))
        if child.is_alive():
            child.kill()
            child.join()
            emit(out, {"name": variant.name, "d": d, "step": "killed", "seconds": min(LIMIT, left)})
        elif child.exitcode:
            emit(out, {"name": variant.name, "d": d, "step": "died", "exit": child.exitcode})


def compile_all(planned: list[tuple[int, Variant]]) -> None:
    """Compile every kernel for sm_90 and print its resources."""
    from redblue.kernels.gpu.planning.fit import _target

    for (d, variant), band in ((x, band) for x in planned for band in (FULL, CAUSAL, CASES[5].band)):
        n = N if band is not CASES[5].band else 333
        x = torch.empty(1, 2, n, d, dtype=torch.bfloat16, device="meta")
        lse = torch.empty(1, 2, n, device="meta")
        for run in variant.runs(task_of(x, x, x, x, lse, x, band, (x, x, x))):
            log = io.StringIO()
            run.kernel.device_caches.clear()
            with _target(90), contextlib.redirect_stdout(log):
                compiled = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings)
            lines = [line for line in log.getvalue().splitlines() if "spill" in line or "Used" in line or "C75" in line]
            print(variant.name, f"d {d}", band.name, run.kernel.__name__, compiled.metadata.shared, lines, flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", default="hopper_backward.jsonl")
    parser.add_argument("--budget", type=float, default=120, help="seconds")
    parser.add_argument("--compile", action="store_true", help="only compile, for sm_90")
    parser.add_argument("--only", default="", help="only variants whose name contains this text")
    parser.add_argument("--d", type=int, choices=(64, 128), default=0, help="only this head dimension")
    arguments = parser.parse_args()
    some = [x for x in PLANNED if arguments.d in (0, x[0])]
    planned = chosen(parser, arguments.only, some, lambda x: x[1].name)
    if arguments.compile:
        compile_all(planned)
    else:
        run_all(planned, arguments.out, arguments.budget)


if __name__ == "__main__":
    main()
