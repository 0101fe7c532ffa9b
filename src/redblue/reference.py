"""The float64 reference: attention and its gradient as the textbook writes them. Everything is held against it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Forward(NamedTuple):
    out: np.ndarray  # (..., n_q, d_v)
    lse: np.ndarray  # (..., n_q)
    p: np.ndarray  # (..., n_q, n_k): the probabilities
    row_max: np.ndarray  # (..., n_q): of the scores; the lowest float64 where a row attends nothing
    row_sum: np.ndarray  # (..., n_q): of exp(score - row_max)


class Gradients(NamedTuple):
    dq: np.ndarray  # (..., n_q, d)
    dk: np.ndarray  # (..., n_k, d)
    dv: np.ndarray  # (..., n_k, d_v)


class GradientX(NamedTuple):
    dx: np.ndarray  # (..., d, d)


def forward(q: np.ndarray, k: np.ndarray, v: np.ndarray, attends: np.ndarray | None = None) -> Forward:
    """softmax(Q K^T / sqrt(d)) V in float64. Shapes (..., n_q, d), (..., n_k, d), (..., n_k, d_v).

    attends: boolean (n_q, n_k), True where a query attends a key. A row that attends nothing gives 0 and lse -inf.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if attends is not None:
        s = np.where(attends, s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    top = np.where(top == -np.inf, 0.0, top)
    weights = np.exp(s - top)
    total = weights.sum(axis=-1, keepdims=True)
    p = weights / np.where(total == 0, 1.0, total)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    lowest = np.where(np.isinf(lse), np.finfo(np.float64).min, top[..., 0])
    return Forward(p @ v, lse, p, lowest, total[..., 0])


def backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, attends: np.ndarray | None = None
) -> Gradients:
    """Gradients of sum(dout * out) with respect to Q, K and V, in float64."""
    p = forward(q, k, v, attends).p
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    dp = dout @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return Gradients(ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dout)


def gradient_x(
    a1: np.ndarray,
    a2: np.ndarray,
    a3: np.ndarray,
    e: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    attends: np.ndarray | None = None,
) -> GradientX:
    """The gradient of 1/2 || softmax(A1 X A2^T / d) A3 Y - E ||^2 with respect to X, in float64.

    Shapes (..., n_q, d), (..., n_k, d), (..., n_k, d), (..., n_q, d_v), (..., d, d), (..., d, d_v).
    Source: the problem of arXiv 2410.09397; with q = A1 X / sqrt(d), k = A2 and v = A3 Y it is attention, and the
    gradient A1^T dS A2 / d.
    """
    a1, a2, a3, e, x, y = (np.asarray(array, np.float64) for array in (a1, a2, a3, e, x, y))
    q, v = a1 @ x / np.sqrt(x.shape[-1]), a3 @ y
    residual = forward(q, a2, v, attends).out - e
    dq = backward(q, a2, v, residual, attends).dq
    return GradientX(np.swapaxes(a1, -1, -2) @ dq / np.sqrt(x.shape[-1]))
