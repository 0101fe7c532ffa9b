"""Checks a variant, and times it in turns with the backends of SDPA."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import Any

from benchmarks.gpu.gate import ENDS, Part, band_mask, launch_gate
from benchmarks.gpu.hopper.calls import settings_of, tensors
from benchmarks.gpu.hopper.rows import MASKS
from benchmarks.gpu.timing import call_ahead, in_rounds

ROUNDS, CALLS = 5, 3


def run(row: dict[str, Any]) -> dict[str, Any]:
    """Check the row's variant, and time it."""
    import torch

    from redblue.kernels.gpu.hopper.forward import prepare

    torch.manual_seed(0)
    q, k, v = tensors(row, "cuda")
    first, end = MASKS[row["mask"]]
    scale = q.shape[3] ** -0.5
    out = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], math.nan, device=q.device)
    launch = prepare(q, k, v, out, lse, scale, first, end, settings_of(row))
    start = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    result: dict[str, Any] = {"first_call_s": round(time.perf_counter() - start, 2)}
    middle: Part = slice(0, 1), slice(k.shape[1] // 2, k.shape[1] // 2 + 1)
    gate = launch_gate(q, k, v, attends=band_mask(q.shape[2], k.shape[2], first, end, q.device), parts=(*ENDS, middle))
    verdict = gate.verdict({"out": out, "lse": lse})
    result |= verdict._asdict() | {"right": verdict.right}
    if not result["right"] or row["what"] != "time":
        return result
    return result | times(row, q, k, v, launch, scale)


def times(row: dict[str, Any], q: Any, k: Any, v: Any, launch: Any, scale: float) -> dict[str, Any]:
    """TFLOP/s of the variant and of SDPA's backends: medians over rounds of a few calls."""
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
    failed: list[str] = []
    for contender, call in list(calls.items()):
        with contextlib.suppress(RuntimeError):
            call()
            continue
        failed.append(calls.pop(contender) and contender)
    torch.cuda.synchronize()
    measured = in_rounds(calls, ROUNDS, CALLS, call_ahead, queue_all=False)
    n, d = q.shape[2], q.shape[3]
    flop = 4 * q.shape[0] * q.shape[1] * n * n * d * (0.5 if causal else 1.0)
    speeds = {name: round(flop / statistics.median(seconds) / 1e12, 1) for name, seconds in measured.items()}
    return {"tflops": speeds, "ms": {name: round(1e3 * min(seconds), 4) for name, seconds in measured.items()}} | (
        {"failed": failed} if failed else {}
    )
