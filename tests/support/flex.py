"""Calls of flex_attention, and dense references for them in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

import redblue as rb

if not hasattr(flex, "AuxRequest"):
    pytest.skip("this version of PyTorch's flex_attention has no AuxRequest", allow_module_level=True)


class Gathering(TorchFunctionMode):
    """A context in which table[i, j] gathers under vmap. PyTorch's own such context lacks some derivatives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(x, torch.Tensor) for x in index):
                return torch.ops.aten.index.Tensor(args[0], index)
        return func(*args, **(kwargs or {}))


def tensors(
    n_q: int = 19, n_k: int = 23, batch: int = 2, heads: int = 4, kv_heads: int = 4, dtype: Any = torch.float64
) -> list[torch.Tensor]:
    """q, k and v of head dimensions 8 and 5, none of them contiguous."""
    generator = torch.Generator().manual_seed(n_q + n_k)
    shapes = (n_q, heads, 8), (n_k, kv_heads, 8), (n_k, kv_heads, 5)
    made = (torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.transpose(1, 2).to(dtype).requires_grad_() for x in made]


def eager(q: Any, k: Any, v: Any, score_mod: Any = None, block_mask: Any = None, **options: Any) -> tuple[Any, Any]:
    """PyTorch's eager flex_attention, without gradients; it requires _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG."""
    with torch.no_grad():
        q, k, v = (x.detach() for x in (q, k, v))
        aux = flex.AuxRequest(lse=True)
        out, more = flex.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_aux=aux, **options)
    return out, more.lse


def dense(
    q: Any, k: Any, v: Any, score_mod: Any = None, keeps: Any = None, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp with gradients, by whole matrices in float64. keeps: a boolean per score."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        positions = (torch.arange(n, device=scores.device) for n in scores.shape)
        with Gathering():
            scores = flex._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *positions)
    if keeps is not None:
        scores = torch.where(keeps, scores, -torch.inf)
    attends = (scores > -torch.inf).any(-1, keepdim=True)
    scores = torch.where(attends, scores, 0.0)  # the gradient of a row of -inf would be NaN
    lse = scores.logsumexp(-1, keepdim=True)
    weights = torch.where(attends, (scores - lse).exp(), 0.0)
    return weights @ v, torch.where(attends, lse, -torch.inf)[..., 0]


def check(
    q: Any, k: Any, v: Any, score_mod: Any = None, block_mask: Any = None, keeps: Any = None,
    captured: tuple[torch.Tensor, ...] = (), close: float = 1e-12, **options: Any,
) -> None:  # fmt: skip
    """Assert that out, lse and all gradients equal the dense ones. keeps: the pairs of block_mask, as booleans."""
    inputs = [x for x in (q, k, v, *captured) if x.requires_grad]
    out, lse = rb.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_lse=True, **options)
    expected_out, expected_lse = dense(q, k, v, score_mod, keeps, **options)
    assert out.dtype == q.dtype
    torch.testing.assert_close(out.double(), expected_out, rtol=close, atol=close)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=close, atol=close)
    generator = torch.Generator().manual_seed(0)
    dout, dlse = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (out, lse))
    dlse = torch.where(expected_lse > -torch.inf, dlse, 0.0)
    gradients = torch.autograd.grad((out, lse), inputs, (dout.to(out), dlse.to(lse)), allow_unused=True)
    finite = torch.where(expected_lse > -torch.inf, expected_lse, 0.0)
    expected = torch.autograd.grad((expected_out, finite), inputs, (dout, dlse), allow_unused=True)
    for x, got, wanted in zip(inputs, gradients, expected, strict=True):
        got, wanted = (torch.zeros_like(x, dtype=torch.float64) if g is None else g.double() for g in (got, wanted))
        torch.testing.assert_close(got, wanted, rtol=10 * close, atol=10 * close)
