"""The float64 reference: attention and its gradient by their textbook formulas. Tests compare all kernels with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Forward(NamedTuple):
    out: np.ndarray  # (..., n_q, d_v)
    lse: np.ndarray  # (..., n_q): sinks included
    p: np.ndarray  # (..., n_q, n_k): the probabilities, before dropout
    row_max: np.ndarray  # (..., n_q): the maximum score; the lowest float64 for a row that attends nothing
    row_sum: np.ndarray  # (..., n_q): the sum of exp(score - row_max)


class Gradients(NamedTuple):
    """The gradients of the inputs, in the shapes of the inputs."""

    dq: np.ndarray  # (..., n_q, d)
    dk: np.ndarray  # (..., n_k, d)
    dv: np.ndarray  # (..., n_k, d_v)
    dbias: np.ndarray | None = None
    dsinks: np.ndarray | None = None  # (H,)


class GradientX(NamedTuple):
    dx: np.ndarray  # (..., d, d)


def forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    attends: np.ndarray | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    alibi: np.ndarray | None = None,
    positions: tuple[np.ndarray, np.ndarray] | None = None,
    dropout: np.ndarray | None = None,
) -> Forward:
    """softmax(softcap(scale Q K^T) + bias, masked) V in float64. Shapes (..., n_q, d), (..., n_k, d), (..., n_k, d_v).

    Leading dimensions broadcast. The third dimension from the end, if there is one, is the heads. K and V may have
    fewer heads than Q: then consecutive heads of Q share a head of K and V. A row that attends nothing gives 0 and
    lse -inf.

    attends: boolean (n_q, n_k), True where a query attends a key. scale: 1 / sqrt(d) if None. softcap: scores x become
    softcap tanh(x / softcap). bias: added after softcap; a boolean bias is True where a query attends. sinks: (H,), one
    more score for the rows of a head, without a value. alibi: slopes, (H,) or (..., H); after softcap,
    slope |i + n_k - n_q - j| is subtracted from the score of query i and key j. positions: of the queries and of the
    keys; alibi's distances are then |queries[i] - keys[j]|. dropout: the factors of the probabilities, 0 or
    1 / (1 - share).
    """
    q, k, v = _widened(q, k, v)
    s, _ = _scores(q, k, attends, scale=scale, softcap=softcap, bias=bias, alibi=alibi, positions=positions)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite scores less their maximum; log(0)
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        sink = -np.inf if sinks is None else np.asarray(sinks, np.float64)[:, None, None]
        top = np.maximum(top, sink)
        top = np.where(top == -np.inf, 0.0, top)
        weights = np.exp(s - top)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - top)
        p = weights / np.where(total == 0, 1.0, total)
        lse = (top + np.log(total))[..., 0]
        out = (p if dropout is None else p * dropout) @ v
    lowest = np.where(np.isinf(lse), np.finfo(np.float64).min, top[..., 0])
    return Forward(out, lse, p, lowest, total[..., 0])


def backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dout: np.ndarray,
    attends: np.ndarray | None = None,
    *,
    dlse: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    alibi: np.ndarray | None = None,
    positions: tuple[np.ndarray, np.ndarray] | None = None,
    dropout: np.ndarray | None = None,
) -> Gradients:
    """Gradients of sum(dout * out) + sum(dlse * lse), in float64, with respect to Q, K, V, the bias and the sinks."""
    shapes = [np.shape(x) for x in (q, k, v)]
    scores: dict[str, Any] = {"scale": scale, "softcap": softcap, "bias": bias, "alibi": alibi, "positions": positions}
    outputs = forward(q, k, v, attends, sinks=sinks, dropout=dropout, **scores)
    q, k, v = _widened(q, k, v)
    dout, p, kept = np.asarray(dout, np.float64), outputs.p, 1.0 if dropout is None else dropout
    with np.errstate(invalid="ignore"):
        _, slope = _scores(q, k, attends, **scores)
        dp = dout @ np.swapaxes(v, -1, -2) * kept
        delta = (p * dp).sum(axis=-1) - (0.0 if dlse is None else dlse)
        ds = p * (dp - delta[..., None])
        dx = ds * slope * (q.shape[-1] ** -0.5 if scale is None else scale)
        dq, dk, dv = dx @ k, np.swapaxes(dx, -1, -2) @ q, np.swapaxes(p * kept, -1, -2) @ dout
    dbias = dsinks = None
    if bias is not None and bias.dtype != bool:
        dbias = summed_to(ds, bias.shape)
    if sinks is not None:
        shares = np.exp(np.asarray(sinks, np.float64)[:, None] - np.where(np.isneginf(outputs.lse), 0.0, outputs.lse))
        dsinks = summed_to((-shares * delta).sum(axis=-1), sinks.shape)
    dq, dk, dv = (summed_to(x, shape) for x, shape in zip((dq, dk, dv), shapes, strict=True))
    return Gradients(dq, dk, dv, dbias, dsinks)


def _widened(q: np.ndarray, *kv: np.ndarray) -> list[np.ndarray]:
    """Convert the arrays to float64, and repeat the heads of K and V."""
    arrays = [np.asarray(x, np.float64) for x in (q, *kv)]
    heads = max((x.shape[-3] for x in arrays if x.ndim > 2), default=1)
    return [
        np.repeat(x, heads // x.shape[-3], axis=-3) if x.ndim > 2 and 1 < x.shape[-3] < heads else x for x in arrays
    ]


def _scores(
    q: np.ndarray,
    k: np.ndarray,
    attends: np.ndarray | None,
    *,
    scale: float | None,
    softcap: float | None,
    bias: np.ndarray | None,
    alibi: np.ndarray | None,
    positions: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[np.ndarray, Any]:
    """The scores, -inf where a query does not attend, and the derivative of softcap tanh(x / softcap)."""
    slope = 1.0
    with np.errstate(invalid="ignore"):
        s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            bent = np.tanh(s / softcap)
            s, slope = softcap * bent, 1.0 - bent**2
        if alibi is not None:
            n_q, n_k = s.shape[-2:]
            queries, keys = (np.arange(n_q) + n_k - n_q, np.arange(n_k)) if positions is None else positions
            distance = np.abs(queries[:, None] - keys)
            s = s - np.asarray(alibi, np.float64)[..., None, None] * distance
        if bias is not None:
            s = np.where(bias, s, -np.inf) if bias.dtype == bool else s + np.asarray(bias, np.float64)
    return (s if attends is None else np.where(attends, s, -np.inf)), slope


def summed_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a gradient over repeated heads and broadcast dimensions, down to the shape of the array that was expanded."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    if len(shape) > 2 and 1 < shape[-3] < gradient.shape[-3]:
        group = gradient.shape[-3] // shape[-3]
        gradient = gradient.reshape(*gradient.shape[:-3], shape[-3], group, *gradient.shape[-2:]).sum(axis=-3)
    spread = tuple(i for i, size in enumerate(shape) if size == 1 != gradient.shape[i])
    return gradient.sum(axis=spread, keepdims=True)


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
    gradient is A1^T dS A2 / d.
    """
    a1, a2, a3, e, x, y = (np.asarray(array, np.float64) for array in (a1, a2, a3, e, x, y))
    q, v = a1 @ x / np.sqrt(x.shape[-1]), a3 @ y
    residual = forward(q, a2, v, attends).out - e
    dq = backward(q, a2, v, residual, attends).dq
    return GradientX(np.swapaxes(a1, -1, -2) @ dq / np.sqrt(x.shape[-1]))
