"""The algebra of rules: intersection, union and complement, simplified where one rule equals the combination."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.patterns.composed import Inverted, Joined
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.bands import Window
from redblue.masks.rules.dense import resized
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes, common_sizes
from redblue.masks.rules.stack import Stack, planes


@dataclass(frozen=True)
class Combined(Rule):
    """Two or more rules, combined by one operator. None of them is itself combined by the same operator."""

    rules: tuple[Rule, ...]

    op = np.bitwise_and
    sign = "&"

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({r})" if isinstance(r, Combined) else repr(r) for r in self.rules)

    @property
    def sizes(self) -> Sizes:
        return common_sizes(self.rules)

    @property
    def fits_any_sizes(self) -> bool:
        return all(rule.fits_any_sizes for rule in self.rules)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        patterns = (rule.pattern(n_q, n_k) for rule in self.rules)
        return functools.reduce(lambda a, b: Joined(n_q, n_k, a, b, self.op), patterns)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        if old == new:
            return self
        combine = functools.partial(_combine, type(self))
        return functools.reduce(combine, (resized(rule, old, new) for rule in self.rules))


@dataclass(frozen=True, repr=False)
class Both(Combined):
    """The pairs that every rule has."""


@dataclass(frozen=True, repr=False)
class Either(Combined):
    """The pairs that at least one rule has."""

    op = np.bitwise_or
    sign = "|"


@dataclass(frozen=True)
class Not(Rule):
    """The pairs that the rule does not have."""

    rule: Rule

    def __repr__(self) -> str:
        return f"~({self.rule})" if isinstance(self.rule, Combined) else f"~{self.rule}"

    @property
    def sizes(self) -> Sizes:
        return self.rule.sizes

    @property
    def fits_any_sizes(self) -> bool:
        return self.rule.fits_any_sizes

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return Inverted(n_q, n_k, self.rule.pattern(n_q, n_k))

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        return negated(resized(self.rule, old, new))


def both(a: Rule, b: Rule) -> Rule:
    """Return the rule of the pairs that both rules have. Raises RedblueError if their stacks do not broadcast."""
    return _for_each_entry(functools.partial(_combine, Both), a, b)


def either(a: Rule, b: Rule) -> Rule:
    """Return the rule of the pairs that one of the rules has, or both. Raises RedblueError as `both` does."""
    return _for_each_entry(functools.partial(_combine, Either), a, b)


def negated(rule: Rule) -> Rule:
    """Return the rule of the pairs that the rule does not have."""
    return _for_each_entry(_negate, rule)


def _for_each_entry(make: Callable[..., Rule], *rules: Rule) -> Rule:
    """Apply `make` to the rules, or to each entry of their stacks, whose shapes broadcast."""
    if not any(isinstance(rule, Stack) for rule in rules):
        return make(*rules)
    parts, indices = zip(*map(planes, rules), strict=True)
    try:
        broadcast = np.broadcast_arrays(*indices)
    except ValueError:
        shapes = " and ".join(str(index.shape) for index in indices)
        raise RedblueError(f"masks for batch entries and heads must broadcast, got shapes {shapes}") from None
    results: dict[tuple[int, ...], Rule] = {}
    entries = [tuple(entry) for entry in np.stack([index.ravel() for index in broadcast], axis=1).tolist()]
    for entry in entries:
        if entry not in results:
            results[entry] = make(*(part[i] for part, i in zip(parts, entry, strict=True)))
    return Stack.of([results[entry] for entry in entries], broadcast[0].shape)


def _negate(rule: Rule) -> Rule:
    if isinstance(rule, Not):
        return rule.rule
    return rule.with_layout(~rule.layout) if isinstance(rule, Blocks) else Not(rule)


def _combine(kind: type[Combined], a: Rule, b: Rule) -> Rule:
    """Combine two rules into one list of rules, and merge those that a simple rule can replace."""
    merged: list[Rule] = []
    for part in (part for rule in (a, b) for part in (rule.rules if isinstance(rule, kind) else (rule,))):
        new, place = part, len(merged)
        for other in list(merged):
            if (simple := _simplified(kind, other, new)) is not None:
                new, place = simple, min(place, merged.index(other))
                merged.remove(other)
        merged.insert(place, new)
    return merged[0] if len(merged) == 1 else kind(tuple(merged))


def _simplified(kind: type[Combined], a: Rule, b: Rule) -> Rule | None:
    """Return the simple rule that equals the combination of two; None if there is none."""
    if a == b:
        return a
    if isinstance(a, Window) and isinstance(b, Window) and a.align == b.align:
        return _combine_windows(kind, a, b)
    if isinstance(a, Blocks) and isinstance(b, Blocks) and (type(a), a.shape, a.block) == (type(b), b.shape, b.block):
        return a.with_layout(kind.op(a.layout, b.layout))
    for rule, other in ((a, b), (b, a)):
        result, dropped = (other, rule) if kind is Both else (rule, other)
        if rule.is_full and dropped.fits_any_sizes:
            return result
    return None


def _combine_windows(kind: type[Combined], a: Window, b: Window) -> Window:
    """Take the shorter (Both) or the longer (Either) sides: two windows overlap at the query's own position."""
    sides = ((a.left, b.left), (a.right, b.right))
    if kind is Both:
        left, right = (min((side for side in pair if side is not None), default=None) for pair in sides)
    else:
        left, right = (None if None in pair else max(pair) for pair in sides)  # type: ignore[type-var]
    return Window(left, right, a.align)
