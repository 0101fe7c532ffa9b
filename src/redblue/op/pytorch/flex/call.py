"""redblue.flex_attention for PyTorch's tensors: checks, and the call of redblue.attention that equals it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.options import Options, checked
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op.pytorch import dispatch, sharding
from redblue.op.pytorch.flex.block_masks import converted
from redblue.op.pytorch.flex.evaluate import evaluate
from redblue.op.pytorch.flex.expressions import Expression, names_of, text
from redblue.op.pytorch.flex.positions import Alibi, alibi, window
from redblue.op.pytorch.flex.scores import Scores, normal_form
from redblue.op.pytorch.flex.trace import trace
from redblue.op.pytorch.layouts import sums_of


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row. arguments: as for `_attention`."""
    if not _uncompiled and "torch._dynamo" in sys.modules:
        _uncompiled.append(torch.compiler.disable(_attention))
    return (_uncompiled[0] if _uncompiled else _attention)(*arguments)


# torch.compile breaks its graph here and compiles nothing inside, because it cannot trace a trace. This attribute does
# the work of torch.compiler.disable, which imports torch._dynamo; that would take seconds in programs without compile.
attention._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
_uncompiled: list[Any] = []


def _attention(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Any, scale: Any) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row, in the type of the sums. The shapes are checked."""
    if score_mod is not None and torch._C._are_functorch_transforms_active():
        raise RedblueError("score_mod cannot be traced inside torch.func: call loss.backward(), or give no score_mod")
    if score_mod is not None and sharding.has_distributed((q, k, v)):
        raise RedblueError(
            "score_mod is for tensors of one process, not for DTensors: call redblue.attention with a DTensor as bias"
        )
    device = q.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return _computed(q, k, v, score_mod, block_mask, scale)
    # As in PyTorch, autocast converts q, k and v, but no tensor of a score_mod
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))
    with torch.autocast(device, enabled=False):
        return _computed(q, k, v, score_mod, block_mask, scale)


def _computed(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Any, scale: Any) -> tuple[Tensor, Tensor]:
    n_q, n_k = q.shape[-2], k.shape[-2]
    scale = checked(Options(scale=scale)).scale
    blocks = None if block_mask is None else converted(block_mask, n_q, n_k, q.device)
    mask = None if blocks is None else blocks.mask
    if score_mod is None or not (q.shape[0] and q.shape[1] and n_q and n_k):  # there are no scores
        return dispatch.attention(q, k, v, Options(mask=mask, scale=scale), True)
    sums = sums_of(q.dtype)
    sizes = {"b": q.shape[0], "h": q.shape[1], "q_idx": n_q, "kv_idx": n_k}
    plan = Plan(normal_form(trace(score_mod, sums, q.device)), sizes, q.device, sums)
    windowed, conditions = plan.windows()
    lies_below = functools.cache(lambda: plan.is_below(windowed) or (blocks is not None and blocks.lies_below))
    slopes, bias = plan.added(lies_below)
    mask, bias = plan.masked(_both(mask, windowed), bias, conditions)
    dtype, factor = q.dtype, plan.number * (q.shape[-1] ** -0.5 if scale is None else scale)
    q, k, v = plan.multiplied(q, k, v)
    options = Options(mask=mask, scale=factor, softcap=plan.softcap, bias=bias, alibi=slopes)
    out, lse = dispatch.attention(q, k, v, options, True)
    return out.to(dtype), lse


def _both(mask: Mask | None, other: Mask | None) -> Mask | None:
    return mask if other is None else other if mask is None else mask & other


class Plan:
    """The options of the call that computes these scores.

    sizes: the number of values of b, h, q_idx and kv_idx. sums: the type in which scores are computed.
    """

    def __init__(self, scores: Scores, sizes: dict[str, int], device: torch.device, sums: torch.dtype) -> None:
        self.scores, self.sizes, self.device, self.sums = scores, sizes, device, sums
        self.softcap, self.number = scores.softcap or (None, scores.number)
        self.offset = sizes["kv_idx"] - sizes["q_idx"]  # offset of the diagonal through the last query and last key

    def windows(self) -> tuple[Mask | None, list[Expression]]:
        """The window of all conditions that are windows, and the other conditions."""
        left: int | None = None
        right: int | None = None
        others = []
        for condition in self.scores.keeps:
            limits = window(condition)
            if limits is None:
                others.append(condition)
                continue
            left = limits.left if left is None or (limits.left is not None and limits.left < left) else left
            right = limits.right if right is None or (limits.right is not None and limits.right < right) else right
        return (None if left is right is None else Mask.sliding_window(left, right)), others

    def is_below(self, windowed: Mask | None) -> bool:
        """Whether this window has no key after the diagonal through the last query and the last key."""
        right = windowed.rule.right if windowed is not None and isinstance(windowed.rule, Window) else None
        return right is not None and right <= self.offset

    def added(self, lies_below: Callable[[], bool]) -> tuple[Tensor | None, Tensor | None]:
        """The slopes of alibi, and the sum of all other terms as a bias. lies_below: whether the mask has no key after
        the diagonal through the last query and the last key."""
        slopes, biases = [], []
        for term in self.scores.terms:
            slope = self._slopes(alibi(term), lies_below)
            if slope is None:
                biases.append(self._values(term))
            else:
                slopes.append(slope)
        if len(biases) > 1:
            biases = [functools.reduce(torch.add, (x.to(self.sums) for x in biases))]
        for bias in biases:
            keeps_type = bias.is_floating_point() and (bias.dtype != torch.float64 or self.sums == torch.float64)
            return self._sum(slopes), bias if keeps_type else bias.to(self.sums)
        return self._sum(slopes), None

    @staticmethod
    def _sum(tensors: list[Tensor]) -> Tensor | None:
        return functools.reduce(torch.add, tensors) if tensors else None

    def _slopes(self, slope: Alibi | None, lies_below: Callable[[], bool]) -> Tensor | None:
        """The slopes with which redblue's alibi equals this term; None if there are none or they need a gradient."""
        if slope is None or slope.offset != self.offset or not (slope.absolute or lies_below()):
            return None
        slopes = torch.full((1, 1), -slope.number, dtype=self.sums, device=self.device)
        for factor in slope.factors:
            slopes = slopes * self._values(factor)[..., 0, 0].to(self.sums)
        return None if slopes.requires_grad else slopes

    def masked(
        self, mask: Mask | None, bias: Tensor | None, conditions: list[Expression]
    ) -> tuple[Mask | None, Tensor | None]:
        """Add further conditions: as a boolean bias, or in the mask if there is a bias already."""
        if not conditions:
            return mask, bias
        kept = functools.reduce(torch.logical_and, (self._values(condition) != 0 for condition in conditions))
        if bias is None:
            return mask, kept
        return _both(mask, Mask.from_dense(kept.cpu().numpy())), bias

    def multiplied(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k times the factors of the scores. Tensors of 16 bits become float32: a product would be rounded."""
        if self.scores.factors and q.dtype != self.sums:
            q, k, v = (x.to(self.sums) for x in (q, k, v))
        for factor in self.scores.factors:
            names = names_of(factor)
            if {"q_idx", "kv_idx"} <= names:
                raise RedblueError(
                    f"score_mod multiplies the scores by {text(factor)}, which depends on both q_idx and kv_idx: "
                    "redblue has factors of q and of k only; masked scores must be float('-inf')"
                )
            values = self._values(factor).to(self.sums)
            if "kv_idx" not in names:
                q = q * values
                continue
            if "h" in names and k.shape[1] != q.shape[1]:
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            k = k * values.transpose(-2, -1)
        return q, k, v

    def _values(self, expression: Expression) -> Tensor:
        return evaluate(expression, self.sizes, self.device, self.sums)
