"""The options of a paged call that are arrays: checked against all of its sequences, and expanded."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.kernels.options import ArrayOption, Options, check_array
from redblue.kernels.sizes import Sizes
from redblue.op import api


def expanded(options: Options, q: Any, sizes: Sizes) -> Options:
    """The options with their arrays expanded: bias to (B, H, n_q, longest n_k), slopes to (H,) or (B, H).

    sizes: the sizes that the arrays must fit, with lead (B,) and the number of keys of the longest sequence. The arrays
    are converted to q's library. Raises RedblueError, which names the option, for an array that does not fit.
    """
    if not options.has_arrays:
        return options
    dtype = dtype_name(q.dtype)
    changed = {}
    for name, rules, x in options.present_arrays():
        x = _of_kind(name, x, q)
        check_array(name, x.shape, dtype_name(x.dtype), sizes, dtype)
        full = _full_shape(rules, len(x.shape), sizes)
        changed[name] = x.expand(full) if api.is_torch(x) else np.broadcast_to(x, full)
    return options._replace(**changed)


def of_sequence(options: Options, b: int, n_k: int) -> Options:
    """The part of expanded options that belongs to sequence b, which has n_k keys."""
    changed = {}
    for name, rules, x in options.present_arrays():
        if rules.pairs:
            changed[name] = x[b, ..., :n_k]
        elif rules.lead and len(x.shape) == 2:
            changed[name] = x[b]
    return options._replace(**changed)


def _full_shape(rules: ArrayOption, dimensions: int, sizes: Sizes) -> tuple[int, ...]:
    """The shape to which the array is expanded. Slopes without a dimension of sequences do not get one."""
    full = rules.shape(sizes)
    return full if rules.pairs else full[-max(1, dimensions) :]


def _of_kind(name: str, x: Any, q: Any) -> Any:
    """The array, dense. Raises RedblueError if q is a tensor and the array is not a dense tensor on q's device."""
    if not api.is_torch(q):
        return api.as_numpy(name, x)
    if not api.is_torch(x):
        raise RedblueError(f"{name} must be a PyTorch tensor like q, got {type(x).__name__}")
    if x.device != q.device:
        raise RedblueError(f"{name} must be on the device of q ({q.device}), got {x.device}")
    if x.is_nested or str(x.layout) != "torch.strided":
        raise RedblueError(f"{name} must be dense, got a tensor of layout {x.layout}")
    check_no_gradient(name, x)
    return x.resolve_neg()  # kernels read memory, which holds negated numbers in a view like x.conj().imag


def check_no_gradient(name: str, x: Any) -> None:
    """Raise RedblueError for a tensor that requires a gradient, where PyTorch records gradients."""
    if getattr(x, "requires_grad", False) and _records_gradients():
        raise RedblueError(
            f"{name} requires a gradient, but a paged cache has no backward pass: use torch.no_grad(), or "
            "attention_varlen for training"
        )


def _records_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()
