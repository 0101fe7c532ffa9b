"""Expressions: the computation of a score_mod for one score, as a graph of PyTorch's operators on single numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
SCORE = "score"
POSITIONS = ("b", "h", "q_idx", "kv_idx")  # in the order of the axes of the scores


@dataclass(frozen=True, eq=False)
class Node:
    """One step of a score_mod.

    op: an operator of PyTorch's, operator.getitem for one of several results, or the name of an argument of score_mod.
    args, kwargs: the operator's arguments: nodes, tensors, numbers, and lists of them.
    value: the result for one example, whose type and shape hold for every score.
    names: the arguments of score_mod on which the result depends.
    with_gradient: whether gradients were enabled at this step.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any
    names: frozenset[str]
    with_gradient: bool = True

    @property
    def depends_on_score(self) -> bool:
        return SCORE in self.names


Expression = Node | Tensor | float  # a tensor or number is the same for all scores


def names_of(expression: Expression) -> frozenset[str]:
    """The arguments of score_mod on which an expression depends."""
    return expression.names if isinstance(expression, Node) else frozenset()


def value_of(expression: Any) -> Any:
    """The value of an expression for the example; any other argument unchanged."""
    return expression.value if isinstance(expression, Node) else expression


def apply(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Expression:
    """The expression of an operator on expressions; its value if it depends on no argument of score_mod."""
    names = frozenset[str]().union(*(names_of(x) for x in tree_leaves((args, kwargs))))
    value = op(*tree_map(value_of, args), **tree_map(value_of, kwargs))
    return Node(op, args, kwargs, value, names) if names else value


def number_of(expression: Expression) -> float | None:
    """The number that an expression always is; None if it varies or has a gradient."""
    if isinstance(expression, Node):
        return None
    if isinstance(expression, Tensor):
        if expression.dim() or expression.requires_grad or expression.is_complex():
            return None
        expression = expression.item()
    return float(expression)


def is_minus_infinity(expression: Expression) -> bool:
    return number_of(expression) == -math.inf


def steps(expression: Expression) -> list[Node]:
    """All nodes of an expression, each once, arguments before the nodes that use them."""
    done: dict[int, Node] = {}
    pending = [expression] if isinstance(expression, Node) else []
    while pending:
        last = pending[-1]
        missing = [x for x in _arguments(last) if id(x) not in done]
        if missing:
            pending += missing
        else:
            done.setdefault(id(pending.pop()), last)
    return list(done.values())


def _arguments(node: Node) -> Iterator[Node]:
    return (x for x in tree_leaves((node.args, node.kwargs)) if isinstance(x, Node))


# Text for error messages ---------------------------------------------------------------------------------------------

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floor_divide": "//", "remainder": "%", "pow": "**"}
_INFIX |= {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "eq": "==", "ne": "!="}
_INFIX |= {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
MAX_TEXT = 300


def text(expression: Any) -> str:
    """The expression as readable text; a long text is cut."""
    whole = _text(expression, 0)
    return whole if len(whole) <= MAX_TEXT else f"{whole[:MAX_TEXT]}..."


def _text(x: Any, depth: int) -> str:
    if isinstance(x, Tensor):
        return f"{x.item():g}" if not x.dim() and x.dtype != torch.bool else f"tensor{tuple(x.shape)}"
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(_text(part, depth) for part in x)}]"
    if not isinstance(x, Node):
        return f"{x:g}" if isinstance(x, float) else str(x)
    if isinstance(x.op, str):
        return x.op
    if depth > 12:
        return "..."
    name = name_of(x.op)
    parts = [_text(part, depth + 1) for part in x.args]
    if name == "index" or x.op is operator.getitem:
        return f"{parts[0]}[{parts[1].strip('[]')}]"
    if name in _INFIX and len(parts) == 2:
        sides = (f"({side})" if _needs_parentheses(part) else side for part, side in zip(x.args, parts, strict=True))
        return f" {_INFIX[name]} ".join(sides if name not in ("add",) else parts)
    if name == "rsub":
        return f"{parts[1]} - {parts[0]}"
    if name == "neg":
        return f"-{parts[0]}"
    if name == "_to_copy":
        return f"{parts[0]}.to({str(x.value.dtype).removeprefix('torch.')})"
    return f"{name}({', '.join(parts)})"


def _needs_parentheses(x: Any) -> bool:
    return isinstance(x, Node) and not isinstance(x.op, str) and name_of(x.op) in (*_INFIX, "rsub", "neg")


def name_of(op: Any) -> str:
    """The operator's name without its overload, and without its namespace if that is aten, PyTorch's own."""
    if op is operator.getitem:
        return "getitem"
    space, _, name = str(op.name()).partition("::")
    name = name.partition(".")[0]
    return name if space == "aten" else f"{space}.{name}"
