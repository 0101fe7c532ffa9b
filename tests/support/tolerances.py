"""The errors that results of attention may have against float64, and the checks of a call."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from redblue.lab import reference
from support.attention import Case, backward, forward


def biases(case: Case) -> np.ndarray | None:
    """Return the ALiBi term that each score is reduced by, in float64: (..., heads, n_q, n_k)."""
    alibi, (n_q, n_k) = case.options.get("alibi"), case.full[-2:]
    if alibi is None:
        return None
    distance = np.abs(np.arange(n_q)[:, None] + n_k - n_q - np.arange(n_k))
    return np.asarray(alibi, np.float64)[..., None, None] * distance


def unfused(case: Case, dlse: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Compute attention as PyTorch's separate operations: each result rounded to the type, 16-bit sums in float32."""
    dtype = case.q.dtype
    wide = np.float32 if dtype.itemsize == 2 else dtype.type

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(wide)

    inputs = case.arguments()
    group = case.full[-3] // case.k.shape[-3]
    q, dout = case.q.astype(wide), case.dout.astype(wide)
    k, v = (np.repeat(x.astype(wide), group, axis=-3) for x in (case.k, case.v))
    scale = wide(q.shape[-1] ** -0.5 if inputs["scale"] is None else inputs["scale"])
    factor = wide(1) if inputs["dropout"] is None else inputs["dropout"].astype(wide)
    lowest, slope = wide(-np.inf), wide(1)
    with np.errstate(all="ignore"):
        s = rounded(rounded(q @ k.swapaxes(-1, -2)) * scale)
        if inputs["softcap"] is not None:
            bent = rounded(np.tanh(rounded(s / wide(inputs["softcap"]))))
            s, slope = rounded(bent * wide(inputs["softcap"])), rounded(1 - bent * bent)
        if inputs["alibi"] is not None:
            s = rounded(s - biases(case).astype(wide))
        if (bias := inputs["bias"]) is not None:
            s = np.where(bias, s, lowest) if bias.dtype == bool else rounded(s + bias.astype(wide))
        if inputs["attends"] is not None:
            s = np.where(inputs["attends"], s, lowest)
        sink = lowest if inputs["sinks"] is None else inputs["sinks"].astype(wide)[:, None, None]
        top = np.maximum(s.max(axis=-1, keepdims=True, initial=lowest), sink)
        top = np.where(np.isneginf(top), wide(0), top)
        weights = np.exp(s - top)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - top)
        p = rounded(weights / np.where(total == 0, wide(1), total))
        used = rounded(p * factor)
        dp = rounded(rounded(dout @ v.swapaxes(-1, -2)) * factor)
        delta = (p * dp).sum(axis=-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
        ds = rounded(p * (dp - delta))
        dx = rounded(rounded(ds * slope) * scale)
        dq, dk, dv = dx @ k, dx.swapaxes(-1, -2) @ q, used.swapaxes(-1, -2) @ dout
        return {
            "out": rounded(used @ v),
            "lse": (top + np.log(total))[..., 0],
            "dq": rounded(reference.summed_to(dq, case.q.shape)),
            "dk": rounded(reference.summed_to(dk, case.k.shape)),
            "dv": rounded(reference.summed_to(dv, case.v.shape)),
        }


def floors(case: Case, dlse: np.ndarray | None = None) -> dict[str, float]:
    """Bound the errors that a correct kernel may have even if the unfused expression happens to be exact.

    A result is a sum of products. Each product has a rounding error of the type (in 16 bits, P and dS are rounded too)
    and the error of an exponential, which is the error of its argument: the largest score times the epsilon of sums.
    For float64 the reference has the same precision, so the bound allows for its errors in sums of hundreds of terms.
    """
    inputs = case.arguments()
    exact = np.float64 if case.q.dtype == np.float64 else np.float32
    epsilon, sum_epsilon = float(ml_dtypes.finfo(case.q.dtype).eps), float(np.finfo(exact).eps)
    p = reference.forward(case.q, case.k, case.v, **inputs).p
    kept_by = 1.0 if inputs["dropout"] is None else inputs["dropout"]
    group = case.full[-3] // case.k.shape[-3]
    q, dout = (np.abs(x.astype(np.float64)) for x in (case.q, case.dout))
    k, v = (np.repeat(np.abs(x.astype(np.float64)), group, axis=-3) for x in (case.k, case.v))
    scale = abs(q.shape[-1] ** -0.5 if inputs["scale"] is None else inputs["scale"])
    scores = q @ k.swapaxes(-1, -2) * scale
    if inputs["attends"] is not None:
        scores = scores * inputs["attends"]
    size = 1.0 + scores.max(initial=0.0)
    for extra in (inputs["bias"], inputs["sinks"], biases(case)):
        if extra is not None and extra.dtype != bool:
            extra = np.abs(extra.astype(np.float64))
            size += extra[np.isfinite(extra)].max(initial=0.0)
    dp = dout @ v.swapaxes(-1, -2) * kept_by
    extra_delta = 0.0 if dlse is None else np.abs(dlse[..., None])
    ds = p * (dp + (p * dp).sum(axis=-1, keepdims=True) + extra_delta)
    terms = {
        "out": p * kept_by @ v,
        "dq": ds @ k * scale,
        "dk": reference.summed_to(ds.swapaxes(-1, -2) @ q * scale, case.k.shape),
        "dv": reference.summed_to((p * kept_by).swapaxes(-1, -2) @ dout, case.v.shape),
    }
    least = float(ml_dtypes.finfo(case.q.dtype).smallest_subnormal)
    many = 20 if exact == np.float64 else 4
    limits = {n: (epsilon + many * sum_epsilon * size) * x.max(initial=0.0) + least for n, x in terms.items()}
    return limits | {"lse": many * sum_epsilon * size}


def worst(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error; infinities must agree exactly, and NaN is an infinite error."""
    assert got.shape == expected.shape
    got = got.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]) or not np.isfinite(got[finite]).all():
        return float("inf")
    return float(np.abs(got[finite] - expected[finite]).max(initial=0.0))


def check_close(name: str, got: np.ndarray, expected: np.ndarray, naive: np.ndarray, floor: float) -> None:
    """Check that the error is at most twice that of the unfused expression in the same type, plus a floor."""
    error, allowed = worst(got, expected), worst(naive, expected)
    if np.isinf(allowed):  # the unfused expression overflowed its type
        allowed = floor
    assert error <= 2 * allowed + floor, f"{name}: error {error:.3g}, unfused {allowed:.3g}, floor {floor:.3g}"


def check_forward(case: Case) -> tuple[np.ndarray, np.ndarray]:
    out, lse = forward(case)
    assert out.dtype == case.q.dtype
    exact, naive, floor = reference.forward(case.q, case.k, case.v, **case.arguments()), unfused(case), floors(case)
    check_close("out", out, exact.out, naive["out"], floor["out"])
    check_close("lse", lse, exact.lse, unfused(in_sums(case))["lse"], floor["lse"])
    return out, lse


def in_sums(case: Case) -> Case:
    """Return the same call in the type of its sums, which is the type of lse."""
    exact = np.float64 if case.q.dtype == np.float64 else np.float32
    return Case(*(x.astype(exact) for x in (case.q, case.k, case.v, case.dout)), case.options)


def check_backward(case: Case, dlse: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    out, lse = forward(case)
    gradients = backward(case, out, lse, dlse)
    exact = reference.backward(case.q, case.k, case.v, case.dout, dlse=dlse, **case.arguments())
    naive, floor = unfused(case, dlse), floors(case, dlse)
    for name, got in zip(("dq", "dk", "dv"), gradients, strict=True):
        assert got.dtype == case.q.dtype
        check_close(name, got, getattr(exact, name), naive[name], floor[name])
    return gradients
