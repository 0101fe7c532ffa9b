"""Refusal of second derivatives, which the backward passes over processes do not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError


class _Refusal(torch.autograd.Function):
    """Returns gradients unchanged; differentiating them raises RedblueError."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore
        raise RedblueError("double backward is not supported: redblue.distributed has first derivatives only")


def first_derivatives_only(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward pass whose gradients raise RedblueError when they are differentiated.

    once_differentiable of PyTorch refuses only where the gradient of the output is itself differentiable.
    """

    @wraps(backward)
    def refusing(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return results
        tensors = [x.detach().requires_grad_() for x in results if x is not None]
        refused = iter(_Refusal.apply(*tensors) if tensors else ())  # pyright: ignore
        return tuple(None if x is None else next(refused) for x in results)

    return refusing
