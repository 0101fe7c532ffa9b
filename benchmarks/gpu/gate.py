"""The gate of a call on the GPU, at the size that is timed; common/gate.py has the allowed errors.

The first head of the first sequence and the last head of the last one are compared, since heads share nothing.
`gate` is the gate of whole calls, `launch_gate` that of kernels that a benchmark launches itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red
from benchmarks.common.gate import MAX_OURS, Gate, gate_of, scores, unfused
from benchmarks.gpu.calls import OURS, Call

MAX_LSE = 1e-3  # absolute error of lse: scores are sums in float32 of products of 16-bit numbers
MIN_ERROR = (
    1e-3  # relative; below it, the error of the textbook expression doesn't count, since it may be exact by chance
)
Part = tuple[slice, slice]  # some sequences, and some key heads with their query heads
EVERYTHING: Part = slice(None), slice(None)
FIRST: Part = slice(0, 1), slice(0, 1)
LAST: Part = slice(-1, None), slice(-1, None)
ENDS = FIRST, LAST


def ends(call: Call, x: Tensor) -> list[Tensor]:
    """The heads of the first key head of the first sequence and of the last key head of the last; each (1, h, n, d)."""
    return [chosen(x, call.kv_heads, part) if x.numel() else x for part in ENDS]


def chosen(x: Tensor, kv_heads: int, part: Part) -> Tensor:
    """A part of an array of (B, H, ...) or (B, H_kv, ...)."""
    sequences, key_heads = part
    return x.unflatten(1, (kv_heads, -1))[sequences, key_heads].flatten(1, 2)


def textbook(call: Call, arrays: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The results of the textbook expression in this type, on arrays with one key head."""
    q, k, v, dout = (x.detach().to(dtype) for x in arrays)
    mask = None if call.density == 1 or call.mask is None else torch.from_numpy(call.mask.to_dense(call.n_q, call.n))
    attends = None if mask is None else mask.to(q.device)
    if call.direction == "forward":
        return [unfused(q, k, v, call.causal, attends)]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return list(torch.autograd.grad(unfused(q, k, v, call.causal, attends), (q, k, v), dout))


def gate(call: Call, arrays: Sequence[Tensor]) -> Gate:
    """The gate of a call. Its compared results are all results of the first end, then all of the last end."""

    def compared(results: Sequence[Tensor]) -> list[Tensor]:
        first, last = zip(*(ends(call, x) for x in results), strict=True)
        return [*first, *last]

    def both_ends(dtype: torch.dtype) -> list[Tensor]:
        parts = zip(*(ends(call, x) for x in arrays), strict=True)
        return [x for part in parts for x in textbook(call, part, dtype)]

    return gate_of(call.title, both_ends, getattr(torch, call.dtype), compared, OURS)


def worst(errors: Sequence[float]) -> list[float]:
    """The larger error of each result at both ends."""
    half = len(errors) // 2
    return [max(pair) for pair in zip(errors[:half], errors[half:], strict=True)]


def band_mask(n_q: int, n_k: int, first: int | None, end: int | None, device: str | torch.device) -> Tensor | None:
    """The mask by which query i attends the keys i + first .. i + end - 1. None, without a limit, attends all keys."""
    i, j = torch.arange(n_q, device=device)[:, None], torch.arange(n_k, device=device)[None, :]
    sides = ([] if first is None else [j >= i + first]) + ([] if end is None else [j < i + end])
    return torch.stack(sides).all(0) if sides else None


def launched(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None, attends: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """out, lse and, with dout, dq, dk and dv of the textbook expression in this type.

    Queries may attend no key, and keys that no query attends may hold NaN.
    """
    q, k, v = (x.detach().to(dtype).nan_to_num().requires_grad_(dout is not None) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    s = scores(q, k.repeat_interleave(group, 1), attends=attends)
    p = s.softmax(-1)
    out = (p if attends is None else p.masked_fill(~attends, 0.0)) @ v.repeat_interleave(group, 1)
    results = {"out": out.detach(), "lse": s.detach().logsumexp(-1)}
    if dout is not None:
        results |= zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), dout.to(dtype)), strict=True)
    return results


def differences(name: str, result: Tensor, exact: Tensor) -> dict[str, float]:
    """The errors of a result by their names: relative ones in two norms, and for lse the largest absolute error.

    A wrong element hardly changes the Frobenius norm of a large array, but the largest error.
    """
    if name == "lse":
        attends = exact > -math.inf
        same = torch.equal(result == -math.inf, ~attends)
        return {name: float(torch.where(attends, result - exact, 0.0).abs().max()) if same else math.inf}
    norms = {name: 2, f"largest of {name}": math.inf}
    gap, norm = result.double() - exact, torch.linalg.vector_norm
    return {each: float(norm(gap, order) / norm(exact, order).clamp_min(1e-30)) for each, order in norms.items()}


class Verdict(NamedTuple):
    """The largest errors over the compared parts, and the allowed ones, by name."""

    errors: dict[str, float]
    allowed: dict[str, float]

    @property
    def right(self) -> bool:
        return all(error <= self.allowed[name] for name, error in self.errors.items())


class LaunchGate(NamedTuple):
    """The check of kernels on the same arrays. exact: the results of each part in float64."""

    kv_heads: int
    parts: Sequence[Part]
    exact: list[dict[str, Tensor]]
    allowed: dict[str, float]

    def verdict(self, results: Mapping[str, Tensor]) -> Verdict:
        """The verdict on results, by their names in `exact`.

        A result that is not finite everywhere is wrong; lse may be -inf.
        """
        errors: dict[str, float] = {}
        for name, x in results.items():
            finite = not x.isnan().any() if name == "lse" else x.isfinite().all()
            for part, exact in zip(self.parts, self.exact, strict=True):
                for each, error in differences(name, chosen(x, self.kv_heads, part), exact[name]).items():
                    error = error if finite and not math.isnan(error) else math.inf
                    errors[each] = max(errors.get(each, 0.0), error)
        return Verdict(errors, {each: self.allowed[each] for each in errors})

    def check(self, results: Mapping[str, Tensor]) -> dict[str, float]:
        """The errors of the results. Raises Red if they are too large."""
        verdict = self.verdict(results)
        if not verdict.right:
            raise Red(f"too far from float64: {verdict.errors}; allowed: {verdict.allowed}")
        return verdict.errors


def launch_gate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None = None,
    attends: Tensor | None = None,
    parts: Sequence[Part] = ENDS,
) -> LaunchGate:
    """The gate of kernels with the usual scale. dout: None if they compute no gradients."""
    exact: list[dict[str, Tensor]] = []
    allowed = {"lse": MAX_LSE}
    for part in parts:
        some_q, some_k, some_v = (chosen(x, k.shape[1], part) for x in (q, k, v))
        some_dout = None if dout is None else chosen(dout, k.shape[1], part)
        exact.append(launched(some_q, some_k, some_v, some_dout, attends, torch.float64))
        own = launched(some_q, some_k, some_v, some_dout, attends, q.dtype)
        for name in exact[-1].keys() - {"lse"}:
            for each, error in differences(name, own[name], exact[-1][name]).items():
                allowed[each] = max(allowed.get(each, 0.0), MAX_OURS * max(error, MIN_ERROR))
    return LaunchGate(k.shape[1], parts, exact, allowed)
