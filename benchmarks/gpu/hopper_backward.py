"""Check and time the backward kernels for Hopper GPUs on such a card, compared with PyTorch's.

Each variant and head dimension runs in a separate process with a time limit, so that a hang costs one row. A process
first compares small odd sizes with float64 (full, causal and windowed masks, shared key heads, strides, NaN in keys
that no query attends), then the first and last head at the timed size. Then it times a correct variant in turns with
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
from benchmarks.gpu.gate import EVERYTHING, band_mask, launch_gate
from benchmarks.gpu.timing import in_rounds, sleep_ahead
from redblue.kernels.gpu.hopper.backward import backward
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.sizes import Sizes
from redblue.schedules.flash_onepass import BackwardTiles

LIMIT = 25.0  # seconds of a process
N, HEADS = 8192, 32
ROUNDS = 8
DEVICE = "cuda"
GRADIENTS = "dq", "dk", "dv"


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

    def attends(self, n_q: int, n_k: int) -> Tensor | None:
        return band_mask(n_q, n_k, self.first, self.end, DEVICE)


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


def check_small(variant: Variant, d: int, case: Case) -> dict[str, Any]:
    """The verdict on all gradients of a small call."""

    def filled(heads: int, n: int) -> Tensor:
        x = torch.randn(2, n, heads, d, device=DEVICE).to(case.dtype).transpose(1, 2)
        return x if case.strided else x.contiguous()

    torch.manual_seed(1)
    q, dout = (filled(case.heads, case.n_q) for _ in range(2))
    k, v = (filled(case.kv_heads, case.n_k) for _ in range(2))
    attends = case.band.attends(case.n_q, case.n_k)
    gate = launch_gate(q, k, v, dout, attends, parts=[EVERYTHING])
    out, lse = gate.exact[0]["out"].to(case.dtype), gate.exact[0]["lse"].float()
    if attends is not None:
        unattended = ~attends.any(0)
        k[:, :, unattended], v[:, :, unattended] = float("nan"), float("nan")
    results = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    for run in variant.runs(task_of(q, k, v, out, lse, dout, case.band, results)):
        run()
    verdict = gate.verdict(dict(zip(GRADIENTS, results, strict=True)))
    return {"case": str(case)} | verdict._asdict() | {"right": verdict.right}


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


def measure(variant: Variant, d: int, band: Band) -> dict[str, Any]:
    """The verdict on the first and last head at the full size, and times if the gradients are right."""
    torch.manual_seed(2)
    q, k, v, dout = (torch.randn(1, HEADS, N, d, device=DEVICE).bfloat16() for _ in range(4))
    causal = band is CAUSAL
    out, lse = forward(q, k, v, causal)
    results = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    task = task_of(q, k, v, out, lse, dout, band, results)
    runs = variant.runs(task)

    def ours() -> None:
        for run in runs:
            run()

    ours()
    torch.cuda.synchronize()
    gate = launch_gate(q, k, v, dout, band.attends(N, N))
    verdict = gate.verdict(dict(zip(GRADIENTS, results, strict=True)))
    row: dict[str, Any] = verdict._asdict() | {"right": verdict.right}
    if not verdict.right:
        return row
    times = in_rounds(
        {"ours": ours, **dict(zip(("prepare", "fused", "finish"), runs, strict=True)), **peers(q, k, v, dout, causal)},
        ROUNDS,
        ahead=sleep_ahead,
    )
    row["ms"] = {name: round(1e3 * statistics.median(each), 4) for name, each in times.items()}
    row["least_ms"] = {name: round(1e3 * min(each), 4) for name, each in times.items()}
    work = flop(N, d, HEADS, band)
    row["tflops"] = {
        name: round(work / ms / 1e9, 1) for name, ms in row["ms"].items() if name not in ("prepare", "finish")
    }
    return row


def emit(out: str, row: dict[str, Any]) -> None:
    with Path(out).open("a") as file:
        file.write(json.dumps(row) + "\n")
    if "tflops" in row:
        print(f"{row['name']:26} d {row['d']:3} {row['mask']:7} TFLOP/s {row['tflops']}", flush=True)
        print(f"{'':26} ms {row['ms']} errors {[f'{x:.1e}' for x in row['errors'].values()]}", flush=True)
    else:
        print({key: value for key, value in row.items() if key != "trace"}, flush=True)


def process(variant: Variant, d: int, out: str) -> None:
    """All rows of one variant and head dimension."""
    base = {"name": variant.name, "d": d, "device": torch.cuda.get_device_name()}
    start = time.monotonic()
    try:
        for case in CASES:
            row = check_small(variant, d, case)
            if not row["right"]:
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
