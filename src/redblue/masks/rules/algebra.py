"""Masks made of masks: both, either, not, and one for each head or batch entry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.numbers import Numbers
from redblue.masks.patterns.composed import Inverted, Joined
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.bands import Window
from redblue.masks.rules.dense import resized
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes


@dataclass(frozen=True)
class Several(Rule):
    """Two or more rules at once, none of which is such a rule of the same kind itself."""

    rules: tuple[Rule, ...]

    op = np.bitwise_and
    sign = "&"

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({r})" if isinstance(r, Several) else repr(r) for r in self.rules)

    @property
    def sizes(self) -> Sizes:
        n_q, n_k = zip(*(rule.sizes for rule in self.rules), strict=True)
        return next((n for n in n_q if n is not None), None), next((n for n in n_k if n is not None), None)

    @property
    def takes_any(self) -> bool:
        return all(rule.takes_any for rule in self.rules)

    def laid(self, n_q: int, n_k: int) -> Pattern:
        laid = (rule.laid(n_q, n_k) for rule in self.rules)
        return functools.reduce(lambda a, b: Joined(n_q, n_k, a, b, self.op), laid)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        if old == new:
            return self
        together = functools.partial(_together, type(self))
        return functools.reduce(together, (resized(rule, old, new) for rule in self.rules))


@dataclass(frozen=True, repr=False)
class Both(Several):
    """Pairs that every rule has."""


@dataclass(frozen=True, repr=False)
class Either(Several):
    """Pairs that some rule has."""

    op = np.bitwise_or
    sign = "|"


@dataclass(frozen=True)
class Not(Rule):
    """Pairs that the rule does not have."""

    rule: Rule

    def __repr__(self) -> str:
        return f"~({self.rule})" if isinstance(self.rule, Several) else f"~{self.rule}"

    @property
    def sizes(self) -> Sizes:
        return self.rule.sizes

    @property
    def takes_any(self) -> bool:
        return self.rule.takes_any

    def laid(self, n_q: int, n_k: int) -> Pattern:
        return Inverted(n_q, n_k, self.rule.laid(n_q, n_k))

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        return negated(resized(self.rule, old, new))


@dataclass(frozen=True)
class Stack(Rule):
    """A rule for each entry of `shape` (batch and heads): rules[planes[i]] for the i-th, in row-major order."""

    rules: tuple[Rule, ...]
    planes: Numbers
    shape: tuple[int, ...]

    @classmethod
    def of(cls, rules: Sequence[Rule], shape: tuple[int, ...]) -> Stack:
        """Equal rules share one."""
        distinct = {rule: i for i, rule in enumerate(dict.fromkeys(rules))}
        return cls(tuple(distinct), Numbers(np.fromiter((distinct[rule] for rule in rules), np.int64)), shape)

    def __repr__(self) -> str:
        each = [repr(self.rules[i]) for i in self.planes.array]
        if len(each) > 8:
            each = [*each[:3], "...", *each[-1:]]
        return f"Mask.stack([{', '.join(each)}], shape={self.shape})"

    @property
    def is_full(self) -> bool:
        return all(rule.is_full for rule in self.rules)

    @property
    def sizes(self) -> Sizes:
        return Several(self.rules).sizes if self.rules else (None, None)

    def laid(self, n_q: int, n_k: int) -> Pattern:
        raise RedblueError(
            f"the mask has {len(self.planes)} planes, of shape {self.shape}, for batch entries and heads: ask one of "
            "them, mask.plane(i)"
        )

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        raise RedblueError(
            f"one mask is needed, but there are {len(self.planes)}, of shape {self.shape}, for batch entries and "
            "heads: give mask.plane(i)"
        )

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        return replace(self, rules=tuple(resized(rule, old, new) for rule in self.rules))


def planes(rule: Rule) -> tuple[tuple[Rule, ...], np.ndarray]:
    """The 2-D rules that a rule is made of, and which of them each entry has (shape () if there is but one)."""
    if isinstance(rule, Stack):
        return rule.rules, rule.planes.array.reshape(rule.shape)
    return (rule,), np.zeros((), np.int64)


def _broadcast(make: Callable[..., Rule], *rules: Rule) -> Rule:
    """make(...) of each entry of the rules, whose shapes broadcast."""
    parts, each = zip(*map(planes, rules), strict=True)
    try:
        found = np.broadcast_arrays(*each)
    except ValueError:
        shapes = " and ".join(str(at.shape) for at in each)
        raise RedblueError(f"masks for batch entries and heads must broadcast, got shapes {shapes}") from None
    made: dict[tuple[int, ...], Rule] = {}
    entries = [tuple(entry) for entry in np.stack([at.ravel() for at in found], axis=1).tolist()]
    for entry in entries:
        if entry not in made:
            made[entry] = make(*(part[i] for part, i in zip(parts, entry, strict=True)))
    return Stack.of([made[entry] for entry in entries], found[0].shape)


def both(a: Rule, b: Rule) -> Rule:
    """Pairs that both rules have."""
    return _broadcast(functools.partial(_together, Both), a, b) if _stacked(a, b) else _together(Both, a, b)


def either(a: Rule, b: Rule) -> Rule:
    """Pairs that one of the rules has, or both."""
    return _broadcast(functools.partial(_together, Either), a, b) if _stacked(a, b) else _together(Either, a, b)


def negated(rule: Rule) -> Rule:
    """Pairs that the rule does not have."""
    if isinstance(rule, Stack):
        return _broadcast(negated, rule)
    if isinstance(rule, Not):
        return rule.rule
    return rule.like(~rule.layout) if isinstance(rule, Blocks) else Not(rule)


def _stacked(*rules: Rule) -> bool:
    return any(isinstance(rule, Stack) for rule in rules)


def _together(kind: type[Several], a: Rule, b: Rule) -> Rule:
    """The rules' parts side by side; those that are one simple rule together become it."""
    found: list[Rule] = []
    for part in (part for rule in (a, b) for part in (rule.rules if isinstance(rule, kind) else (rule,))):
        new, where = part, len(found)
        for other in list(found):
            if (one := _one(kind, other, new)) is not None:
                new, where = one, min(where, found.index(other))
                found.remove(other)
        found.insert(where, new)
    return found[0] if len(found) == 1 else kind(tuple(found))


def _one(kind: type[Several], a: Rule, b: Rule) -> Rule | None:
    """The one rule that says the same as the two, where that is simple."""
    if a == b:
        return a
    if isinstance(a, Window) and isinstance(b, Window) and a.align == b.align:
        return _window(kind, a, b)
    if isinstance(a, Blocks) and isinstance(b, Blocks) and (type(a), a.shape, a.block) == (type(b), b.shape, b.block):
        return a.like(kind.op(a.layout, b.layout))
    for rule, other in ((a, b), (b, a)):
        kept, dropped = (other, rule) if kind is Both else (rule, other)
        if rule.is_full and dropped.takes_any:
            return kept
    return None


def _window(kind: type[Several], a: Window, b: Window) -> Window:
    """Of two windows, which both hold the query's own key, the shorter or the longer of each side."""
    sides = ((a.left, b.left), (a.right, b.right))
    if kind is Both:
        left, right = (min((side for side in pair if side is not None), default=None) for pair in sides)
    else:
        left, right = (None if None in pair else max(pair) for pair in sides)  # type: ignore[type-var]
    return Window(left, right, a.align)
