"""Evaluate an expression of positions for all scores of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from redblue.base.errors import RedblueError
from redblue.op.pytorch.flex.expressions import POSITIONS, Expression, Node, aten, steps, text


def evaluate(expression: Expression, sizes: Mapping[str, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The values of an expression that does not depend on the score, with their gradient, as a tensor of 4 axes.

    sizes: the number of values of b, h, q_idx and kv_idx. The tensor has length 1 along the axis of a position on which
    the expression does not depend. dtype: the type of a number.
    """
    if not isinstance(expression, Node):
        if not isinstance(expression, Tensor):
            expression = torch.tensor(expression, dtype=dtype, device=device)
        return expression.expand(1, 1, 1, 1)
    axes = [name for name in POSITIONS if name in expression.names]
    try:
        values = _sliced(expression, axes, sizes)
        if values is None:
            values = _mapped(expression, axes, sizes, device)
    except (IndexError, RuntimeError) as error:
        ranges = ", ".join(f"{name} = 0 .. {sizes[name] - 1}" for name in axes)
        raise RedblueError(f"score_mod's {text(expression)} cannot be evaluated for {ranges}: {error}") from error
    return values[tuple(slice(None) if name in axes else None for name in POSITIONS)]


def _mapped(expression: Node, axes: list[str], sizes: Mapping[str, int], device: torch.device) -> Tensor:
    """Run the expression's operators, mapped over the axes."""
    order = steps(expression)

    def function(*positions: Tensor) -> Tensor:
        values: dict[int, Any] = {}
        by_name = dict(zip(axes, positions, strict=True))
        for node in order:
            values[id(node)] = by_name[node.op] if isinstance(node.op, str) else _run(node, values)
        return values[id(expression)]

    for i in reversed(range(len(axes))):
        function = torch.vmap(function, in_dims=tuple(0 if i == j else None for j in range(len(axes))))
    return function(*(torch.arange(sizes[name], device=device) for name in axes))


def _run(node: Node, values: dict[int, Any]) -> Any:
    args, kwargs = tree_map(lambda x: values[id(x)] if isinstance(x, Node) else x, (node.args, node.kwargs))
    if node.with_gradient:
        return node.op(*args, **kwargs)
    with torch.no_grad():
        return node.op(*args, **kwargs)


def _sliced(expression: Node, axes: list[str], sizes: Mapping[str, int]) -> Tensor | None:
    """The values of expressions such as table[h, q_idx], which need no gathering; None for another expression."""
    names: list[str] = []
    table: Any = expression
    while isinstance(table, Node) and table.op == aten.index.Tensor and table.with_gradient:
        table, places = table.args
        if not all(isinstance(place, Node) and isinstance(place.op, str) for place in places):
            return None
        names = [place.op for place in places] + names
    if isinstance(table, Node) or table.dim() != len(names) or sorted(names) != sorted(axes):
        return None
    for i, name in enumerate(names):
        if table.shape[i] < sizes[name]:
            raise IndexError(f"the table has shape {tuple(table.shape)}, and {name} is its index {i}")
    part = table[tuple(slice(sizes[name]) for name in names)]
    return part.permute([names.index(name) for name in axes])
