"""Evaluate functions of single positions, as PyTorch's FlexAttention takes them, for many positions at once.

This module needs PyTorch. It is imported where a function for FlexAttention exists, so PyTorch is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class ScalarIndexing(TorchFunctionMode):
    """A context in which `table[h, q_idx]` gathers, if h and q_idx are tensors without dimensions.

    PyTorch's own indexing would read the value of such a tensor, which a mapped or traced index does not have.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and not isinstance(args[1], list):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, Tensor) for i in tree_leaves(index)):
                index = tuple(_stacked(i, args[0].device) if isinstance(i, list) else i for i in index)
                tensors = [i for i in index if isinstance(i, Tensor)]
                if all(not i.is_floating_point() and i.dtype != torch.bool for i in tensors):
                    return _gathered(args[0], index, max(i.dim() for i in tensors))
        return func(*args, **(kwargs or {}))


def _stacked(values: list[Any], device: torch.device) -> Tensor:
    """The tensor of a list of numbers, tensors without dimensions, and such lists."""
    if not any(isinstance(x, Tensor) for x in tree_leaves(values)):
        return torch.tensor(values, device=device)
    parts = (_stacked(x, device) if isinstance(x, list) else x for x in values)
    return torch.stack([x if isinstance(x, Tensor) else torch.tensor(x, device=device) for x in parts])


def _gathered(array: Tensor, index: tuple[Any, ...], dim: int) -> Tensor:
    """Return array[index]. Tensors in the index hold whole numbers and have at most `dim` axes."""
    if any(i is Ellipsis for i in index):
        axis = next(n for n, i in enumerate(index) if i is Ellipsis)
        used = sum(i is not None and i is not Ellipsis for i in index)
        index = (*index[:axis], *[slice(None)] * (array.dim() - used), *index[axis + 1 :])
    others: list[Any] = []  # the index without its tensors
    places: list[Tensor | None] = []  # for each axis of array[others], its tensor
    for i in index:
        if isinstance(i, int) and dim:  # PyTorch gathers along this axis, too
            i = torch.tensor(i, device=array.device)
        others.append(slice(None) if isinstance(i, Tensor) else i)
        if not isinstance(i, int):
            places.append(i if isinstance(i, Tensor) else None)
    if any(i != slice(None) for i in others):
        array = array[tuple(others)]
    return torch.ops.aten.index.Tensor(array, places)


def for_pairs(mask_mod: Callable[..., Any], b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Booleans for the pairs (q[i], k[i]) of batch entry b and head h, from one call of mask_mod.

    q, k: tensors of one dimension. torch.vmap maps mask_mod over them, so mask_mod itself sees single positions.
    """
    with ScalarIndexing():
        result = torch.vmap(mask_mod, in_dims=(None, None, 0, 0))(b, h, q, k)
    if result.shape != q.shape:
        raise ValueError(f"the result must be a single boolean, got shape {tuple(result.shape[1:])}")
    return result
