"""FlashAttention 2 in float64 for (batch, n, heads, d) tensors, calls to compare with it, and the comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# The largest error of outputs and gradients, relative to their largest number
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROWS = 64  # rows of which a sum keeps to TOLERANCE, even if its terms cancel

# Options of flash_attn_func; `alibi` stands for alibi_slopes of that shape.
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (4, 2)},
    "left window": {"window_size": (7, -1)},
    "causal window": {"causal": True, "window_size": (9, 3)},
    "softcap": {"softcap": 3.0, "softmax_scale": 0.7},
    "alibi": {"alibi": (4,)},
    "all": {"causal": True, "window_size": (30, -1), "softcap": 5.0, "alibi": (2, 4)},
}


def with_slopes(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the shape `alibi` by alibi_slopes of this shape."""
    options = dict(options)
    if "alibi" in options:
        shape = options.pop("alibi")
        options["alibi_slopes"] = torch.linspace(0.05, 0.6, torch.Size(shape).numel()).reshape(shape)
    return options


def case(n_q, n_k, dtype=torch.float32, heads=4, kv_heads=2, batch=2, d=16, d_v=None, seed=0) -> list[Tensor]:
    """Draw q, k and v, each with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, n_q, heads, d), (batch, n_k, kv_heads, d), (batch, n_k, kv_heads, d_v or d)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    softmax_scale: float | None = None,
    lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
    leftpad: Tensor | None = None,
    kept: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The output (batch, n_q, H, d_v) and the log-sum-exp (batch, H, n_q), in float64.

    lengths, key_lengths: (batch,), rows beyond them are padding. leftpad: keys before it are padding. kept: (batch, H,
    n_q, n_k), False where dropout removes a probability.
    """
    batch, n_q, heads, d = q.shape
    n_k, group = k.shape[1], heads // max(1, k.shape[2])
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (d**-0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ends = torch.full((batch,), n_k) if key_lengths is None else key_lengths
    rows = torch.full((batch,), n_q) if lengths is None else lengths
    starts = torch.zeros(batch, dtype=torch.long) if leftpad is None else leftpad
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)
    ends, rows, starts = (x.long()[:, None, None] for x in (ends, rows, starts))
    offset = (j - starts) - (i + (ends - starts) - rows)  # of a key from its query's own key
    attends = (j >= starts) & (j < ends) & (i < rows)
    left, right = window_size[0], 0 if causal else window_size[1]
    if left >= 0:
        attends = attends & (offset >= -left)
    if right >= 0:
        attends = attends & (offset <= right)
    if alibi_slopes is not None:
        slopes = alibi_slopes.double().expand(batch, heads)
        scores = scores - slopes[:, :, None, None] * offset[:, None].abs()
    attends = attends[:, None]
    scores = scores.masked_fill(~attends, float("-inf"))
    lse = scores.logsumexp(-1)
    p = torch.where(attends, (scores - lse.masked_fill(lse == float("-inf"), 0.0)[..., None]).exp(), 0.0)
    if kept is not None:
        p = p * kept / (1 - dropout_p)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def check_close(got: Tensor, expected: Tensor, dtype: torch.dtype, message: str = "", rows: int = 0) -> None:
    """Assert that the tensors are close, relative to the largest expected number, and infinite at the same places.

    rows: the rows over which each number is a sum. Their terms may cancel, as in dK of a single key, which is 0. Their
    rounding errors do not cancel: those of `rows` rows grow with the square root of `rows`.
    """
    assert got.shape == expected.shape, message
    got, expected = got.detach().double(), expected.detach().double()
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite]), message
    scale = max(1.0, (rows / ROWS) ** 0.5, expected[finite].abs().max().item() if finite.any() else 0.0)
    error = (got - expected)[finite].abs().max().item() if finite.any() else 0.0
    assert error <= TOLERANCE[dtype] * scale, f"{message} error {error:.3g}, scale {scale:.3g}"


def gradients(out: Tensor, inputs: list[Tensor], seed: int = 0) -> list[Tensor]:
    """The gradients of a random weighted sum of the output, the same for every call with outputs of this shape."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return list(torch.autograd.grad((out.double() * weights).sum(), inputs))
