"""Compares out and lse with float64, head by head."""

from __future__ import annotations

import math
from typing import Any

TOLERANCE = {"bfloat16": 1.2e-2, "float16": 2e-3}  # of out, relative to its largest element
TOLERANCE_LSE = 1e-3  # scores are sums of products of 16-bit numbers in float32


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


def _number(x: Any) -> float:
    return math.inf if math.isnan(float(x)) else float(x)
