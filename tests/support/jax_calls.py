"""Helpers of the tests of redblue.jax: calls under jit with gradients, compared with the float64 reference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import redblue as rb
from redblue.jax import dot_product_attention
from redblue.lab import reference
from support.attention import DTYPES, Case
from support.tolerances import check_close, floors, unfused

WITH_GRADIENT = "bias", "sinks"


def arrays(batch=2, n_q=5, n_k=7, heads=4, kv_heads=2, d=8, d_v=8, dtype="float32", seed=0):
    """Query, key, value and the output's gradient as NumPy arrays (batch, rows, heads, features)."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, n_q, heads, d), (batch, n_k, kv_heads, d), (batch, n_k, kv_heads, d_v), (batch, n_q, heads, d_v))
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]


def with_gradients(inputs, dlse, options: dict[str, Any]) -> dict[str, Any]:
    """The outputs of dot_product_attention under jit, and the gradients of all arrays that have one."""
    *qkv, dout = (jnp.asarray(x) for x in inputs)
    differentiable = {n: jnp.asarray(x) for n, x in options.items() if n in WITH_GRADIENT and x is not None}
    others = {n: x for n, x in options.items() if n not in differentiable}

    @jax.jit
    def run(qkv, differentiable, dout, dlse):
        def attend(q, k, v, differentiable):
            return dot_product_attention(q, k, v, return_lse=True, **differentiable, **others)

        (out, lse), backward = jax.vjp(attend, *qkv, differentiable)
        return out, lse, *backward((dout, dlse))

    out, lse, dq, dk, dv, rest = run(qkv, differentiable, dout, jnp.asarray(dlse))
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv} | {f"d{name}": x for name, x in rest.items()}


def check(inputs, options: dict[str, Any], attends: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Compare outputs and gradients with the float64 reference; return them as NumPy arrays, heads before rows.

    attends: the pairs that all masking options together allow, in a shape that broadcasts to (batch, heads, n_q, n_k).
    """
    case = case_of(inputs, options, attends)
    sums = np.float64 if case.q.dtype == np.float64 else np.float32
    rng = np.random.default_rng(1)
    dlse = np.where(np.isneginf(reference.forward(case.q, case.k, case.v, **case.arguments()).lse), 0.0, 1.0)
    dlse = (dlse * rng.standard_normal(dlse.shape)).astype(sums)
    got = {n: np.asarray(x) for n, x in with_gradients(inputs, dlse.swapaxes(1, 2), options).items()}
    got |= {n: got[n].swapaxes(1, 2) for n in ("out", "lse", "dq", "dk", "dv")}
    exact = reference.forward(case.q, case.k, case.v, **case.arguments())
    gradients = reference.backward(case.q, case.k, case.v, case.dout, dlse=dlse, **case.arguments())
    naive, floor = unfused(case, dlse), floors(case, dlse)
    for name in ("out", "lse"):
        check_close(name, got[name], getattr(exact, name), naive[name], floor[name])
    for name in ("dq", "dk", "dv"):
        assert got[name].dtype == case.q.dtype
        check_close(name, got[name], getattr(gradients, name), naive[name], floor[name])
    for name in WITH_GRADIENT:
        if f"d{name}" in got:
            x, expected = got[f"d{name}"].astype(np.float64), getattr(gradients, f"d{name}")
            assert x.shape == np.shape(options[name])
            largest = 1 + np.abs(expected).max(initial=0)
            epsilon = max(float(ml_dtypes.finfo(x).eps) for x in (got[f"d{name}"].dtype, case.q.dtype))
            assert np.abs(x - expected).max(initial=0) <= 40 * epsilon * largest, name
    return got


def case_of(inputs, options: dict[str, Any], attends: np.ndarray | None) -> Case:
    """The same call of rb.attention."""
    kept = ("scale", "softcap", "bias", "sinks", "alibi", "dropout", "seed")
    theirs = {name: options[name] for name in kept if options.get(name) is not None}
    theirs["mask"] = None if attends is None else rb.Mask.from_dense(attends)
    return Case(*(x.swapaxes(1, 2) for x in inputs), theirs)
