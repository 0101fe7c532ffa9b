"""Checks and times variants of the Hopper forward kernel: python -m benchmarks.gpu.hopper --out hopper.jsonl

Each variant is first checked against float64 on the GPU, then timed by events, alternating with SDPA's cuDNN backend. A
worker process runs the rows one by one; if it hangs or crashes, a new worker runs the rest. Each result is appended to
the file at once. --compile compiles every variant without a GPU and reports registers, spills and serialization.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

ROW_SECONDS, START_SECONDS = 25.0, 60.0
ROUNDS, REPEATS = 5, 3
LENGTH, HEADS = 8192, 32
MASKS: dict[str, tuple[int | None, int | None]] = {
    "full": (None, None),
    "causal": (None, 1),
    "window": (-700, 301),
    "late": (100, 400),
}
TOLERANCE = {"bfloat16": 1.2e-2, "float16": 2e-3}  # of out, relative to its largest element
TOLERANCE_LSE = 1e-3  # scores are sums of products of 16-bit numbers in float32


def timed_rows() -> Iterator[dict[str, Any]]:
    """The variants to time, the most important first."""
    three = {"consumers": 3, "ping_pong": False}
    two = {"consumers": 2, "ping_pong": True}
    in_turn = {"persistent": True}
    variants: dict[tuple[int, str], list[dict[str, Any]]] = {
        (128, "full"): [{}, {"ordered": False}, {"ping_pong": False}, {"persistent": False}, {"section": HEADS}],
        (128, "causal"): [{}, {"ordered": False}, in_turn, in_turn | {"section": HEADS}, {"section": HEADS}],
        (64, "full"): [{}, {"ordered": False}, two, two | {"ordered": False}, {"stages": 2}],
        (64, "causal"): [{}, {"ordered": False}, three, in_turn, in_turn | {"section": HEADS}],
        (256, "full"): [{}, {"ordered": False}, {"ping_pong": False}, {"persistent": False}, {"section": 1}],
        (256, "causal"): [{}, {"ordered": False}, in_turn, {"ping_pong": False}, {"section": HEADS}],
    }
    for i in range(max(map(len, variants.values()))):
        for d, mask in variants:
            for variant in variants[d, mask][i : i + 1]:
                yield {"what": "time", "d": d, "mask": mask, "settings": variant, "base": i == 0}


def checked_rows() -> Iterator[dict[str, Any]]:
    """Small calls of odd sizes: every width, mask, type, shape of heads, and strides."""
    sizes = [(333, 517), (517, 333), (1, 300), (200, 64)]
    for d in (128, 64, 256):
        for mask in ("full", "causal", "window"):
            yield {"what": "check", "d": d, "mask": mask, "n": sizes[0]}
    for d, dtype in ((128, "float16"), (64, "float16"), (256, "float16")):
        yield {"what": "check", "d": d, "mask": "causal", "n": sizes[0], "dtype": dtype}
    for n in sizes[1:]:
        for mask in MASKS:
            yield {"what": "check", "d": 128, "mask": mask, "n": n}
    yield {"what": "check", "d": 128, "mask": "late", "n": sizes[1]}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "heads": (6, 2)}
    yield {"what": "check", "d": 128, "mask": "window", "n": sizes[0], "heads": (8, 2), "settings": {"pack": 4}}
    yield {"what": "check", "d": 64, "mask": "causal", "n": sizes[0], "settings": {"consumers": 3}}
    yield {"what": "check", "d": 64, "mask": "window", "n": sizes[1], "settings": {"consumers": 3}}
    yield {"what": "check", "d": 96, "d_v": 64, "mask": "causal", "n": sizes[0]}
    yield {"what": "check", "d": 192, "d_v": 128, "mask": "causal", "n": sizes[0]}
    yield {"what": "check", "d": 72, "mask": "full", "n": sizes[0]}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "rows_outside": True}
    yield {"what": "check", "d": 128, "mask": "causal", "n": sizes[0], "nan": True}
    yield {"what": "check", "d": 128, "mask": "full", "n": sizes[0], "settings": {"persistent": False}}
    for d in (64, 128, 256):  # more tiles than a wave of blocks, so that each block processes several
        yield {"what": "check", "d": d, "mask": "causal", "n": (2100, 2100), "heads": (24, 8), "batch": 2}
        yield {"what": "check", "d": d, "mask": "window", "n": (2100, 2100), "heads": (24, 8), "batch": 2}


def rows() -> list[dict[str, Any]]:
    checks, times = list(checked_rows()), list(timed_rows())
    return checks[:3] + times[:2] + checks[3:12] + times[2:12] + times[12:30] + checks[12:] + times[30:]


def name(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


# One row --------------------------------------------------------------------------------------------------------


def tensors(row: dict[str, Any], device: str) -> tuple[Any, Any, Any]:
    import torch

    dtype = getattr(torch, row.get("dtype", "bfloat16"))
    timed = row["what"] == "time"
    n_q, n_k = (LENGTH, LENGTH) if timed else row["n"]
    batch = row.get("batch", 1 if timed else 2)
    heads, kv_heads = (HEADS, HEADS) if timed else row.get("heads", (3, 3))
    d, d_v = row["d"], row.get("d_v", row["d"])
    make = torch.randn if device == "cuda" else torch.empty

    def array(count: int, n: int, features: int) -> Any:
        if row.get("rows_outside"):
            return make(batch, n, count, features, dtype=dtype, device=device).transpose(1, 2)
        return make(batch, count, n, features, dtype=dtype, device=device)

    q, k, v = array(heads, n_q, d), array(kv_heads, n_k, d), array(kv_heads, n_k, d_v)
    if row.get("nan") and device == "cuda":  # keys that no query attends
        k[:, :, n_q:] = math.nan
        v[:, :, n_q:] = math.nan
    return q, k, v


def settings_of(row: dict[str, Any]) -> Any:
    from redblue.kernels.gpu.planning.by_gluon import settings

    mask = "full" if row["mask"] == "full" else "band"
    return settings(row["d"], row.get("d_v", row["d"]), mask)[0]._replace(**row.get("settings", {}))


def compiled(row: dict[str, Any], uncached: bool = False) -> dict[str, Any]:
    """Compile the row's kernel without a GPU. Returns the assembler's report unless the kernel is in Triton's cache."""
    import re

    import torch
    from triton import knobs

    from redblue.kernels.gpu.hopper.forward import prepare
    from redblue.kernels.gpu.planning.fit import _target, standing_in

    q, k, v = tensors(row, "cpu")
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    launch = prepare(q, k, v, out, lse, 0.1, *MASKS[row["mask"]], settings_of(row))
    log = io.StringIO()
    launch.kernel.device_caches.clear()
    with contextlib.ExitStack() as stack:
        if uncached:
            stack.enter_context(_target(90))
        else:
            stack.enter_context(knobs.nvidia.scope())
            stack.enter_context(standing_in(90))
        stack.enter_context(contextlib.redirect_stdout(log))
        kernel = launch.kernel.warmup(*launch.positional, grid=launch.grid, **launch.settings)
    report = log.getvalue()
    return {
        "shared": kernel.metadata.shared,
        "registers": [int(x) for x in re.findall(r"Used (\d+) registers", report)],
        "spilled": [int(x) for x in re.findall(r"(\d+) bytes spill stores", report)],
        "serialized": sorted(set(re.findall(r"C75\d\d", report))),
        "hgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        "setmaxnreg": kernel.asm["ptx"].count("setmaxnreg"),
    }


def reference(q: Any, k: Any, v: Any, scale: float, first: int | None, end: int | None) -> tuple[Any, Any]:
    """out and lse of one head in float64."""
    import torch

    s = (q.double() @ k.double().mT) * scale
    i, j = torch.arange(q.shape[0], device=q.device)[:, None], torch.arange(k.shape[0], device=q.device)[None, :]
    keep = torch.ones_like(s, dtype=torch.bool)
    if first is not None:
        keep &= j >= i + first
    if end is not None:
        keep &= j < i + end
    s = s.masked_fill_(~keep, -math.inf)
    lse = torch.logsumexp(s, 1)
    p = torch.exp(s - lse[:, None]).masked_fill_(~keep, 0.0)
    return p @ v.double().nan_to_num(), lse


def run(row: dict[str, Any]) -> dict[str, Any]:
    """Check the row's variant, and time it."""
    import torch

    from redblue.kernels.gpu.hopper.forward import prepare

    torch.manual_seed(0)
    q, k, v = tensors(row, "cuda")
    first, end = MASKS[row["mask"]]
    scale = q.shape[3] ** -0.5
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype, device="cuda")
    lse = torch.full(q.shape[:3], math.nan, device="cuda")
    launch = prepare(q, k, v, out, lse, scale, first, end, settings_of(row))
    start = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    result: dict[str, Any] = {"first_call_s": round(time.perf_counter() - start, 2)}
    result |= errors(q, k, v, out, lse, scale, first, end)
    if not result["right"] or row["what"] != "time":
        return result
    return result | times(row, q, k, v, launch, scale)


def errors(q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, first: int | None, end: int | None) -> Any:
    import torch

    error, error_lse = 0.0, 0.0
    group = q.shape[1] // k.shape[1]
    for b, h in {(0, 0), (q.shape[0] - 1, q.shape[1] - 1), (0, q.shape[1] // 2)}:
        expected, expected_lse = reference(q[b, h], k[b, h // group], v[b, h // group], scale, first, end)
        attends = torch.isfinite(expected_lse)
        expected[~attends] = 0.0
        gap = (out[b, h].double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
        error = max(error, _number(gap))
        same = torch.equal(lse[b, h] == -math.inf, ~attends)
        gap = (lse[b, h][attends] - expected_lse[attends]).abs().max() if bool(attends.any()) else torch.zeros(())
        error_lse = max(error_lse, _number(gap) if same else math.inf)
    finite = bool(torch.isfinite(out).all()) and not bool(torch.isnan(lse).any())
    right = finite and error < TOLERANCE[str(q.dtype).removeprefix("torch.")] and error_lse < TOLERANCE_LSE
    return {"error": error, "error_lse": error_lse, "finite": finite, "right": right}


def _number(x: Any) -> float:
    return math.inf if math.isnan(float(x)) else float(x)


def times(row: dict[str, Any], q: Any, k: Any, v: Any, launch: Any, scale: float) -> dict[str, Any]:
    """TFLOP/s of the variant and of SDPA's backends, in alternation: medians over rounds of a few calls."""
    import statistics

    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    causal = row["mask"] == "causal"

    def sdpa(backend: Any) -> Any:
        def call() -> None:
            with sdpa_kernel(backend):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

        return call

    calls: dict[str, Any] = {"redblue": launch, "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}
    if row["base"]:
        calls["flash"] = sdpa(SDPBackend.FLASH_ATTENTION)
    measured: dict[str, list[float]] = {}
    failed: list[str] = []
    for contender, call in list(calls.items()):
        with contextlib.suppress(RuntimeError):
            call()
            continue
        failed.append(calls.pop(contender) and contender)
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for contender, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            begin.record()
            for _ in range(REPEATS):
                call()
            end.record()
            end.synchronize()
            measured.setdefault(contender, []).append(begin.elapsed_time(end) / REPEATS)
    n, d = q.shape[2], q.shape[3]
    flop = 4 * q.shape[0] * q.shape[1] * n * n * d * (0.5 if causal else 1.0)
    speeds = {name: round(flop / statistics.median(ms) / 1e9, 1) for name, ms in measured.items()}
    return {"tflops": speeds, "ms": {name: round(min(ms), 4) for name, ms in measured.items()}} | (
        {"failed": failed} if failed else {}
    )


# Processes --------------------------------------------------------------------------------------------------------


def work() -> None:
    """Run rows from standard input, one per line, and print one line per result."""
    import torch

    torch.zeros(1, device="cuda")
    print(json.dumps({"device": torch.cuda.get_device_name()}), flush=True)
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:1500]}
            if "CUDA error" in str(error) or "illegal" in str(error):
                print(json.dumps(answer), flush=True)
                os._exit(1)
        print(json.dumps(answer), flush=True)


class Worker:
    """A process that runs rows; answers time out."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.hopper", "--work"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.dead = False

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=max(0.1, seconds))
        except queue.Empty:
            self.stop()
            return {"failed": f"no answer within {seconds:.0f} s"}
        if line is None:
            self.stop()
            return {"failed": f"the process ended with {self.process.wait()}"}
        return json.loads(line)

    def ask(self, row: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(row) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the process has ended; `answer` reports it
        return self.answer(seconds)

    def stop(self) -> None:
        self.dead = True
        self.process.kill()


def measure(out: str, budget: float, chosen: list[dict[str, Any]]) -> int:
    """Run the rows within the budget; the number of rows that failed or were wrong."""
    start = time.monotonic()
    worker = Worker()
    ahead = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.hopper", "--ahead", f"{i}/{AHEAD}"])
        for i in range(AHEAD)
    ]
    print(worker.answer(START_SECONDS), flush=True)
    wrong = 0
    for row in chosen:
        left = budget - (time.monotonic() - start)
        if left < 4:
            print(f"stopped: the budget of {budget:.0f} s is spent", flush=True)
            break
        if worker.dead:
            worker = Worker()
            worker.answer(min(left, START_SECONDS))
            left = budget - (time.monotonic() - start)
        result = worker.ask(row, min(left, ROW_SECONDS))
        wrong += not result.get("right", False)
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"row": row, **result}) + "\n")
        print(f"{time.monotonic() - start:6.1f} s  {name(row)}\n          {json.dumps(result)}", flush=True)
    worker.stop()
    for process in ahead:
        process.kill()
    return wrong


AHEAD = max(1, min(12, (os.cpu_count() or 2) - 3))


def compile_all(chosen: list[dict[str, Any]]) -> int:
    """Compile the kernels of the rows, print their resources, and return the number that spill or are serialized."""
    bad = 0
    with ProcessPoolExecutor(1) as pool:
        futures = {pool.submit(compiled, row, True): row for row in chosen}
        for future in as_completed(futures):
            result = future.result()
            bad += bool(result["serialized"]) or max(result["spilled"], default=0) > 16 or not result["setmaxnreg"]
            print(name(futures[future]), json.dumps(result), flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="hopper.jsonl", help="file to which results are appended")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for everything")
    parser.add_argument("--only", default="", help="run only rows whose name contains this text")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--compile", action="store_true", help="compile every variant for sm_90, without a GPU")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = [row for row in rows() if arguments.only in name(row)]
    if arguments.list:
        print(*map(name, chosen), sep="\n")
        return 0
    if arguments.work:
        work()
        return 0
    if arguments.ahead:
        share, shares = map(int, arguments.ahead.split("/"))
        for row in chosen[share::shares]:
            compiled(row)
        return 0
    if arguments.compile:
        return min(1, compile_all(chosen))
    return min(1, measure(arguments.out, arguments.budget, chosen))


if __name__ == "__main__":
    sys.exit(main())
