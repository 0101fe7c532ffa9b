"""The normal form of a score_mod, in the order in which redblue's kernels compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.op.pytorch.flex.expressions import (
    SCORE,
    Expression,
    Node,
    apply,
    aten,
    is_minus_infinity,
    name_of,
    number_of,
    steps,
    text,
    value_of,
)
from redblue.op.pytorch.flex.positions import EXACT, NEGATIONS

if TYPE_CHECKING:
    from typing import TypeGuard


@dataclass(frozen=True)
class Scores:
    """cap tanh(number factors score) + terms where all of `keeps` are true, else -inf; without cap there is no tanh.

    None of its expressions depends on the score. As in PyTorch, whole numbers are converted to `dtype` before
    arithmetic.
    """

    number: float = 1.0
    factors: tuple[Expression, ...] = ()
    cap: float | None = None  # may be negative
    terms: tuple[Expression, ...] = ()
    keeps: tuple[Expression, ...] = ()
    dtype: torch.dtype = torch.float32  # the type in which scores are computed

    @property
    def softcap(self) -> tuple[float, float] | None:
        """(softcap, factor): cap tanh(number score) equals softcap tanh(factor score / softcap). None without cap."""
        return (abs(self.cap), self.cap * self.number) if self.cap else None

    def times(self, factor: Expression) -> Scores:
        """These scores times a factor. Raises Refused if the product has no such form."""
        number = number_of(factor)
        if self.keeps and not (number is not None and number > 0):
            raise Refused("multiplies scores after it has masked some: mask last")
        terms = tuple(multiplied(self._converted(term), factor) for term in self.terms)
        if number is None:
            if self.cap is not None:
                raise Refused("multiplies a softcap by something other than a constant number")
            return replace(self, factors=(*self.factors, *_factors(factor)), terms=terms)
        if self.cap is not None and number:
            return replace(self, cap=self.cap * number, terms=terms)
        if self.cap is not None:  # the score no longer matters
            return Scores(number=0.0, terms=terms, dtype=self.dtype)
        return replace(self, number=self.number * number, terms=terms)

    def plus(self, term: Expression, times: float = 1) -> Scores:
        """These scores plus the product of a term and the number `times`."""
        parts = _terms(term)
        if times != 1:
            parts = [multiplied(self._converted(part), times) for part in parts]
        return replace(self, terms=(*self.terms, *parts))

    @property
    def factor(self) -> Expression:
        """Everything that multiplies the score, as one expression."""
        result: Expression = self.number
        for factor in self.factors:
            result = multiplied(self._converted(factor), result)
        return result

    @property
    def term(self) -> Expression:
        """Everything that is added to the score, as one expression."""
        result: Expression = 0.0
        for i, term in enumerate(self.terms):
            result = added(result, self._converted(term)) if i else self._converted(term)
        return result

    @property
    def keep(self) -> Expression | None:
        """All conditions as one expression; None if there is none."""
        result: Expression | None = None
        for keep in self.keeps:
            result = keep if result is None else apply(aten.logical_and.default, result, keep)
        return result

    def _converted(self, x: Expression) -> Expression:
        return promoted(x, self.dtype)


class Refused(Exception):
    """A step of a score_mod has no counterpart. The message continues the sentence 'score_mod ...'."""


def normal_form(result: Expression) -> Scores:
    """The normal form of the expression that a score_mod returns.

    Raises RedblueError, which holds the traced expression, if redblue's kernels do not compute it.
    """
    if not isinstance(result, Node) or not result.depends_on_score:
        return Scores(number=0.0).plus(result)
    forms: dict[int, Scores] = {}
    try:
        for node in steps(result):
            if node.depends_on_score:
                forms[id(node)] = _form(node, forms)
    except Refused as refused:
        raise RedblueError(
            f"score_mod {refused}. redblue computes softcap(scale q k) + bias, masked; only the bias and the mask may "
            f"depend on both q_idx and kv_idx. score_mod is {text(result)}"
        ) from None
    return forms[id(result)]


def _form(node: Node, forms: dict[int, Scores]) -> Scores:
    """The form of one step, from the forms of its arguments."""
    if node.op == SCORE:
        return Scores(dtype=node.value.dtype)
    if not node.with_gradient:
        raise Refused(f"computes {text(node)} without its gradient")
    name = name_of(node.op)
    step = _STEPS.get(name)
    if step is None:
        raise Refused(f"applies {name} to the scores, in {text(node)}")
    return step(node, [forms.get(id(x), x) for x in node.args])


def _add(node: Node, args: list[Any], sign: int = 1) -> Scores:
    left, right = args
    alpha = sign * node.kwargs.get("alpha", 1)
    if isinstance(right, Scores):
        right = right if alpha == 1 else right.times(alpha)
        return _sum(left, right) if isinstance(left, Scores) else right.plus(left)
    return left.plus(right, alpha)


def _rsub(node: Node, args: list[Any]) -> Scores:  # args[1] - alpha args[0]
    taken, whole = args[:2]
    alpha = -(args[2] if len(args) > 2 else node.kwargs.get("alpha", 1))
    if isinstance(taken, Scores):
        taken = taken.times(alpha)
        return _sum(whole, taken) if isinstance(whole, Scores) else taken.plus(whole)
    return whole.plus(taken, alpha)


def _sum(left: Scores, right: Scores) -> Scores:
    if left.cap is not None or right.cap is not None:
        raise Refused("adds scores to a softcap of scores")
    factor = added(left.factor, right.factor)
    both = Scores(1.0, (), None, (*left.terms, *right.terms), (*left.keeps, *right.keeps), left.dtype)
    return (
        replace(both, number=number) if (number := number_of(factor)) is not None else replace(both, factors=(factor,))
    )


def _mul(node: Node, args: list[Any]) -> Scores:
    left, right = args
    if isinstance(left, Scores) and isinstance(right, Scores):
        raise Refused(f"multiplies scores by scores, in {text(node)}")
    return left.times(right) if isinstance(left, Scores) else right.times(left)


def _div(node: Node, args: list[Any]) -> Scores:
    above, below = args
    if isinstance(below, Scores):
        raise Refused(f"divides by the scores, in {text(node)}")
    if node.kwargs.get("rounding_mode") is not None:
        raise Refused(f"rounds the scores, in {text(node)}")
    number = number_of(below)
    if number == 0:
        raise Refused(f"divides by 0, in {text(node)}")
    if number is not None:
        return above.times(1 / number)
    return above.times(apply(aten.div.Tensor, torch.ones_like(node.value), below))


def _tanh(node: Node, args: list[Any]) -> Scores:
    (inner,) = args
    if inner.cap is not None:
        raise Refused("applies tanh twice")
    for step, present in (("an addition", inner.terms), ("a mask", inner.keeps)):
        if present:
            raise Refused(f"caps scores after {step}: cap first")
    return replace(inner, cap=1.0)


def _where(node: Node, args: list[Any]) -> Scores:
    condition, yes, no = args
    if isinstance(condition, Scores):
        raise Refused(f"depends on the value of a score, in {text(node)}")
    if isinstance(yes, Scores) and not isinstance(no, Scores) and is_minus_infinity(no):
        return replace(yes, keeps=(*yes.keeps, *_conditions(condition)))
    if isinstance(no, Scores) and not isinstance(yes, Scores) and is_minus_infinity(yes):
        return replace(no, keeps=(*no.keeps, *_conditions(apply(aten.logical_not.default, condition))))
    yes, no = (x if isinstance(x, Scores) else Scores(number=0.0, dtype=node.value.dtype).plus(x) for x in (yes, no))
    form = _common_factor(node, condition, yes, no)
    if _are_same(yes.terms, no.terms):
        form = replace(form, terms=yes.terms)
    else:
        form = form.plus(_chosen(node, condition, yes.term, no.term))
    if yes.keeps or no.keeps:
        keeps = (node.value.new_ones((), dtype=torch.bool) if x.keep is None else x.keep for x in (yes, no))
        form = replace(form, keeps=(apply(aten.where.self, condition, *keeps),))
    return form


def _common_factor(node: Node, condition: Expression, yes: Scores, no: Scores) -> Scores:
    """The scores of where(condition, yes, no), before terms are added and masks applied."""
    if (yes.number, yes.cap) == (no.number, no.cap) and _are_same(yes.factors, no.factors):
        return replace(yes, terms=(), keeps=())
    if yes.cap is not None or no.cap is not None:
        raise Refused(f"caps some scores and not others, in {text(node)}")
    return Scores(factors=(_chosen(node, condition, yes.factor, no.factor),), dtype=yes.dtype)


def _are_same(xs: tuple[Expression, ...], ys: tuple[Expression, ...]) -> bool:
    return len(xs) == len(ys) and all(x is y for x, y in zip(xs, ys, strict=True))


def _chosen(node: Node, condition: Expression, yes: Expression, no: Expression) -> Expression:
    """where(condition, yes, no), for numbers in the type of the scores."""
    like = node.value.detach()
    sides = (x if isinstance(x, (Node, Tensor)) else like.new_full((), x) for x in (yes, no))
    return apply(aten.where.self, condition, *sides)


def _masked_fill(node: Node, args: list[Any]) -> Scores:
    values, condition, filling = args
    return _where(node, [condition, filling, values])


def _converted(node: Node, args: list[Any]) -> Scores:
    dtype, score = node.value.dtype, args[0]
    if not dtype.is_floating_point or torch.finfo(dtype).bits < 32:
        raise Refused(f"rounds the scores to {str(dtype).removeprefix('torch.')}")
    return score


def _same(node: Node, args: list[Any]) -> Scores:
    if not isinstance(args[0], Scores) or node.value.dim():
        raise Refused(f"changes the shape of a score, in {text(node)}")
    return args[0]


_STEPS: dict[str, Callable[[Node, list[Any]], Scores]] = {
    "add": _add,
    "sub": lambda node, args: _add(node, args, -1),
    "rsub": _rsub,
    "neg": lambda node, args: args[0].times(-1.0),
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "tanh": _tanh,
    "where": _where,
    "masked_fill": _masked_fill,
    "_to_copy": _converted,
    **dict.fromkeys(("clone", "alias", "lift_fresh", "view", "_unsafe_view", "expand", "squeeze"), _same),
}


# Parts of sums, products and conjunctions ----------------------------------------------------------------------------


def promoted(x: Expression, dtype: torch.dtype) -> Expression:
    """The expression converted to `dtype` unless its own type is wider, as PyTorch's operators convert arguments."""
    if isinstance(x, (int, float)):
        return x
    own = value_of(x).dtype
    wanted = torch.promote_types(own, dtype)
    return x if own == wanted else apply(aten._to_copy.default, x, dtype=wanted)


def added(x: Expression, y: Expression) -> Expression:
    """x + y."""
    if isinstance(x, (int, float)):
        return x + y if isinstance(y, (int, float)) else apply(aten.add.Tensor, y, x)
    return apply(aten.add.Tensor, x, y)


def multiplied(x: Expression, y: Expression) -> Expression:
    """x y."""
    if isinstance(x, (int, float)):
        return x * y if isinstance(y, (int, float)) else apply(aten.mul.Tensor, y, x)
    return apply(aten.mul.Tensor, x, y)


def _terms(x: Expression) -> list[Expression]:
    """The parts of a sum. A difference of positions stays whole: `positions.alibi` recognises it."""
    if not _is_step(x) or x.kwargs.get("alpha", 1) != 1 or x.value.dtype not in (torch.float32, torch.float64):
        return [x]
    if name_of(x.op) == "add":
        return [*_terms(x.args[0]), *_terms(x.args[1])]
    if name_of(x.op) == "sub":
        return [*_terms(x.args[0]), *(multiplied(promoted(part, x.value.dtype), -1) for part in _terms(x.args[1]))]
    return [x]


def _factors(x: Expression) -> list[Expression]:
    """The parts of a product."""
    if _is_step(x) and name_of(x.op) == "mul" and x.value.dtype in EXACT:
        return [*_factors(x.args[0]), *_factors(x.args[1])]
    return [x]


def _conditions(x: Expression, negated: bool = False) -> list[Expression]:
    """The parts of a conjunction, or of a negated disjunction."""
    if _is_step(x) and x.value.dtype == torch.bool:
        name = name_of(x.op)
        if name in (("bitwise_or", "logical_or") if negated else ("bitwise_and", "logical_and")):
            return [part for side in x.args for part in _conditions(side, negated)]
        if name in NEGATIONS and value_of(x.args[0]).dtype == torch.bool:
            return _conditions(x.args[0], not negated)
    return [apply(aten.logical_not.default, x) if negated else x]


def _is_step(x: Any) -> TypeGuard[Node]:
    """Whether this is an operator's result, computed with its gradient."""
    return isinstance(x, Node) and not isinstance(x.op, str) and x.with_gradient
