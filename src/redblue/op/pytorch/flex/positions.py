"""Recognise expressions of positions that redblue's kernels compute without an array: windows and alibi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redblue.op.pytorch.flex.expressions import Expression, Node, name_of, names_of, number_of

EXACT = {torch.int64, torch.float32, torch.float64}  # they hold every position
MAX_NUMBER = 1 << 22  # limit of a Line's numbers: larger sums could be rounded in float32, or wrap in int64


@dataclass(frozen=True)
class Line:
    """The whole number q * q_idx + kv * kv_idx + constant."""

    q: int = 0
    kv: int = 0
    constant: int = 0

    def times(self, factor: int) -> Line:
        return Line(self.q * factor, self.kv * factor, self.constant * factor)

    def plus(self, other: Line) -> Line:
        return Line(self.q + other.q, self.kv + other.kv, self.constant + other.constant)

    @property
    def is_diagonal(self) -> bool:
        """Whether it is plus or minus (q_idx - kv_idx), plus a constant."""
        return self.q == -self.kv and abs(self.q) == 1


def line(x: Any) -> Line | None:
    """The expression as a Line; None if it is not one."""
    if isinstance(x, bool):
        return None
    if isinstance(x, int):
        return Line(constant=x)
    if isinstance(x, Tensor):
        whole = not x.dim() and not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool
        return Line(constant=int(x)) if whole else None
    if not isinstance(x, Node):
        return None
    if x.op in ("q_idx", "kv_idx"):
        return Line(q=1) if x.op == "q_idx" else Line(kv=1)
    if isinstance(x.op, str) or not isinstance(x.value, Tensor) or x.value.dtype not in EXACT:
        return None
    candidate = _line_of_step(x)
    is_small = candidate is not None and max(abs(candidate.q), abs(candidate.kv), abs(candidate.constant)) <= MAX_NUMBER
    return candidate if is_small else None


def _line_of_step(x: Node) -> Line | None:
    name = name_of(x.op)
    if name == "_to_copy":
        return line(x.args[0])
    if name == "neg":
        inner = line(x.args[0])
        return None if inner is None else inner.times(-1)
    if name in ("add", "sub", "rsub", "mul"):
        left, right = line(x.args[0]), line(x.args[1])
        if left is None or right is None or x.kwargs.get("alpha", 1) != 1 or len(x.args) > 2:
            return None
        if name == "mul":
            number, other = (left, right) if left.q == left.kv == 0 else (right, left)
            return other.times(number.constant) if number.q == number.kv == 0 else None
        if name == "rsub":
            left, right = right, left
        return left.plus(right if name == "add" else right.times(-1))
    return None


# Windows -------------------------------------------------------------------------------------------------------------

_MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}
_OPPOSITE = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}
NEGATIONS = ("bitwise_not", "logical_not")


@dataclass(frozen=True)
class Window:
    """Query i attends the keys i - left .. i + right; None: all keys on that side."""

    left: int | None = None
    right: int | None = None


def window(condition: Expression) -> Window | None:
    """The window that a condition describes; None for other conditions and for windows with a negative side."""
    if not isinstance(condition, Node) or isinstance(condition.op, str):
        return None
    name = name_of(condition.op)
    if name in NEGATIONS and isinstance(inner := condition.args[0], Node) and not isinstance(inner.op, str):
        condition, name = inner, _OPPOSITE.get(name_of(inner.op), "")
    if name not in _MIRRORED:
        return None
    x, limit = condition.args
    wide = _of_distance(name, x, limit) or _of_distance(_MIRRORED[name], limit, x)
    if wide is not None:
        return wide if min(wide.left or 0, wide.right or 0) >= 0 else None
    left, right = line(x), line(limit)
    if left is None or right is None:
        return None
    difference = left.plus(right.times(-1))
    if not difference.is_diagonal:
        return None
    if difference.q < 0:
        difference, name = difference.times(-1), _MIRRORED[name]
    c = difference.constant  # q_idx - kv_idx + c is compared with 0
    side = {"ge": c, "gt": c - 1, "le": -c, "lt": -c - 1}[name]
    if side < 0:
        return None
    return Window(right=side) if name in ("ge", "gt") else Window(left=side)


def _of_distance(name: str, x: Any, limit: Any) -> Window | None:
    """The window of |q_idx - kv_idx + c| <= limit, or < limit."""
    inner, most = _absolute(x), line(limit)
    if name not in ("le", "lt") or inner is None or most is None or most.q or most.kv:
        return None
    side = most.constant - (name == "lt")
    return Window(side - inner.constant, side + inner.constant)


def _absolute(x: Any) -> Line | None:
    """q_idx - kv_idx + c of the expression |q_idx - kv_idx + c|; None for another expression."""
    if not isinstance(x, Node) or isinstance(x.op, str):
        return None
    if name_of(x.op) == "_to_copy" and x.value.dtype in EXACT:
        return _absolute(x.args[0])
    inner = line(x.args[0]) if name_of(x.op) == "abs" else None
    if inner is None or not inner.is_diagonal:
        return None
    return inner if inner.q > 0 else inner.times(-1)


# Alibi ---------------------------------------------------------------------------------------------------------------


def _is_product(x: Any) -> bool:
    """Whether x is a product, quotient, negation or conversion in a type that represents small numbers exactly."""
    if not isinstance(x, Node) or isinstance(x.op, str) or x.value.dtype not in EXACT:
        return False
    name = name_of(x.op)
    return name in ("mul", "neg", "div") or (name == "_to_copy" and x.value.is_floating_point())


@dataclass(frozen=True)
class Alibi:
    """The term number * product of factors * |q_idx - kv_idx + offset|; without absolute value unless `absolute`."""

    number: float
    factors: tuple[Expression, ...]  # depend on b and h at most
    offset: int
    absolute: bool


def alibi(term: Expression) -> Alibi | None:
    """The term as a distance times a number per head; None if it is something else."""
    number, factors, distance = 1.0, [], None
    pending: list[Any] = [term]
    while pending:
        x = pending.pop()
        constant = number_of(x)
        if constant is not None:
            number *= constant
            continue
        inner = _absolute(x)
        straight = line(x)
        if inner is not None or (straight is not None and straight.is_diagonal):
            if distance is not None:
                return None
            distance = x
        elif _is_product(x):
            if name_of(x.op) == "div":
                divisor = number_of(x.args[1])
                if not divisor or x.kwargs:
                    return None
                number /= divisor
                pending.append(x.args[0])
            else:
                number *= -1.0 if name_of(x.op) == "neg" else 1.0
                pending += x.args
        elif names_of(x) <= {"b", "h"}:
            factors.append(x)
        else:
            return None
    if distance is None:
        return None
    inner = _absolute(distance)
    if inner is not None:
        return Alibi(number, tuple(factors), inner.constant, True)
    straight = line(distance)
    assert straight is not None
    return Alibi(number * straight.q, tuple(factors), straight.constant * straight.q, False)
