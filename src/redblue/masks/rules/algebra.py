"""The algebra of rules: intersection, union and complement, simplified where one rule equals the combination."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.bands import Window
from redblue.masks.rules.composed import composed
from redblue.masks.rules.dense import resized
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule, Sizes, common_sizes, every_part, fold
from redblue.masks.rules.stack import Stack, planes


class Combined(Rule):
    """Two or more rules, combined by one operator. None of them is itself combined by the same operator.

    Rules may be nested thousands of levels deep and may have thousands of parts. So no method recurses, and a new part
    is not compared with every other part: `terms` finds the only part that it can merge with.

    terms: the parts in order, by `_key`. has_full: whether some part is full. code: the hash, if it is known.
    """

    operator: ClassVar[Any] = np.bitwise_and
    sign = "&"

    def __init__(self, terms: dict[Any, Rule], has_full: bool = False, code: int | None = None) -> None:
        self.terms = terms
        self.has_full = has_full
        self.code = functools.reduce(_hash_with, terms.values(), hash(self.sign)) if code is None else code

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Combined:
        """Make the rule of parts that are known not to merge."""
        terms = {_key(rule): rule for rule in rules}
        return cls(terms, any(rule.is_full for rule in terms.values()))

    @functools.cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The parts, in order."""
        return tuple(self.terms.values())

    @property
    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Combined) and _equal(self, other)

    def __repr__(self) -> str:
        return _text(self)

    def __reduce__(self) -> tuple[Any, ...]:
        every = every_part(self)
        place = {id(rule): i for i, rule in enumerate(every)}
        nested = (Combined, Not)
        return _rebuilt, ([(type(r), [place[id(p)] for p in r.parts]) if isinstance(r, nested) else r for r in every],)

    @property
    def sizes(self) -> Sizes:
        return fold(self, lambda rule, parts: common_sizes(parts) if isinstance(rule, Combined) else rule.sizes)

    @property
    def fits_any_sizes(self) -> bool:
        return fold(self, lambda rule, parts: all(parts) if isinstance(rule, Combined) else rule.fits_any_sizes)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return composed(self, n_q, n_k)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        return self if old == new else _resized(self, old, new)


class Both(Combined):
    """The pairs that every rule has."""


class Either(Combined):
    """The pairs that at least one rule has."""

    operator: ClassVar[Any] = np.bitwise_or
    sign = "|"


@dataclass(frozen=True)
class Not(Rule):
    """The pairs that the rule does not have."""

    rule: Rule

    operator: ClassVar = np.invert

    def __repr__(self) -> str:
        return _text(self)

    @property
    def parts(self) -> tuple[Rule, ...]:
        return (self.rule,)

    @property
    def sizes(self) -> Sizes:
        return fold(self, lambda rule, parts: common_sizes(parts) if parts else rule.sizes)

    @property
    def fits_any_sizes(self) -> bool:
        return fold(self, lambda rule, parts: all(parts) if parts else rule.fits_any_sizes)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return composed(self, n_q, n_k)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        return self if old == new else _resized(self, old, new)


def _hash_with(code: int, rule: Rule) -> int:
    """The hash of parts with hash `code` and one more part."""
    return hash((code, rule))


def _equal(a: Rule, b: Rule) -> bool:
    """Compare two rules part by part."""
    pending, compared = [(a, b)], set()
    while pending:
        a, b = pending.pop()
        if a is b or (id(a), id(b)) in compared:
            continue
        if type(a) is not type(b) or hash(a) != hash(b) or len(a.parts) != len(b.parts):
            return False
        if not a.parts and a != b:
            return False
        compared.add((id(a), id(b)))
        pending += zip(a.parts, b.parts, strict=True)
    return True


def _text(rule: Rule) -> str:
    """Format a rule with its operators; a combined rule inside another one is put in parentheses."""
    texts: list[str] = []
    pending: list[Rule | str] = [rule]
    while pending:
        token = pending.pop()
        if isinstance(token, str):
            texts.append(token)
        elif isinstance(token, (Combined, Not)):
            separator = f" {token.sign} " if isinstance(token, Combined) else ""
            for i, part in enumerate(reversed(token.parts)):
                pending += [separator] if i else []
                pending += [")", part, "("] if isinstance(part, Combined) else [part]
            pending += ["~"] if isinstance(token, Not) else []
        else:
            texts.append(repr(token))
    return "".join(texts)


def _rebuilt(entries: list[Any]) -> Rule:
    """Undo Combined.__reduce__. entries: simple rules, and for other rules their type and the places of their parts."""
    rules: list[Rule] = []
    for entry in entries:
        if isinstance(entry, Rule):
            rules.append(entry)
        else:
            kind, places = entry
            parts = [rules[i] for i in places]
            rules.append(Not(*parts) if kind is Not else kind.of(parts))
    return rules[-1]


def _resized(rule: Rule, old: tuple[int, int], new: tuple[int, int]) -> Rule:
    """Resize every simple rule, and combine the results again."""

    def value_of(part: Rule, parts: list[Rule]) -> Rule:
        if isinstance(part, Not):
            return negated(parts[0])
        return combined(type(part), parts) if isinstance(part, Combined) else resized(part, old, new)

    return fold(rule, value_of)


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


def _combine(kind: type[Combined], a: Rule, b: Rule) -> Rule:
    return combined(kind, (a, b))


def _negate(rule: Rule) -> Rule:
    if isinstance(rule, Not):
        return rule.rule
    return rule.with_layout(~rule.layout) if isinstance(rule, Blocks) else Not(rule)


def combined(kind: type[Combined], rules: Iterable[Rule]) -> Rule:
    """Combine rules of one plane, at least one, by the operator of `kind`."""
    first, *others = rules
    terms = _Terms(kind, first)
    for rule in others:
        terms.add(rule)
    return terms.combined()


class _Terms:
    """The parts of a combination while it is built. Parts that one simple rule can replace merge."""

    def __init__(self, kind: type[Combined], first: Rule) -> None:
        self.kind = kind
        self.terms: dict[Any, Rule] = {}
        self.has_full = False
        self.code: int | None = hash(kind.sign)  # None: to be computed again
        if isinstance(first, kind):
            self.terms, self.has_full, self.code = first.terms.copy(), first.has_full, first.code
        else:
            self._add(first)

    def add(self, rule: Rule) -> None:
        """Add a rule, or its parts if it is of the same kind."""
        for part in rule.parts if isinstance(rule, self.kind) else (rule,):
            self._add(part)

    def _add(self, rule: Rule) -> None:
        key = _key(rule)
        known = self.terms.get(key)
        if known is not None and (known is rule or known == rule):
            return
        if self.kind is Either and self.has_full and rule.fits_any_sizes:
            return
        if known is None:
            self.code = None if self.code is None else _hash_with(self.code, rule)
        else:
            rule, self.code = _merged(self.kind, known, rule), None
        self.terms[key] = rule
        if rule.is_full:
            self.has_full = True
            if self.kind is Either:  # a full rule replaces all others, except rules that check sizes
                self._keep([term for term in self.terms.values() if term is rule or not term.fits_any_sizes])

    def _keep(self, rules: Iterable[Rule]) -> None:
        self.terms, self.code = {_key(rule): rule for rule in rules}, None

    def combined(self) -> Rule:
        """Return the one part that is left, or the combination of the parts."""
        if self.kind is Both and self.has_full:
            needed = [rule for rule in self.terms.values() if not (rule.is_full and rule.fits_any_sizes)]
            self._keep(needed or list(self.terms.values())[:1])
        if len(self.terms) == 1:
            return next(iter(self.terms.values()))
        return self.kind(self.terms, self.has_full, self.code)


def _key(rule: Rule) -> Any:
    """Return a key that is equal for two rules if one simple rule equals their combination."""
    if isinstance(rule, Window):
        return Window, rule.align
    return (type(rule), rule.shape, rule.block) if isinstance(rule, Blocks) else rule


def _merged(kind: type[Combined], a: Rule, b: Rule) -> Rule:
    """Return the simple rule that equals the combination of two rules with equal keys."""
    if isinstance(a, Window) and isinstance(b, Window):
        return _combine_windows(kind, a, b)
    if isinstance(a, Blocks) and isinstance(b, Blocks):
        return a.with_layout(kind.operator(a.layout, b.layout))
    return a


def _combine_windows(kind: type[Combined], a: Window, b: Window) -> Window:
    """Take the shorter (Both) or the longer (Either) sides: two windows overlap at the query's own position."""
    sides = ((a.left, b.left), (a.right, b.right))
    if kind is Both:
        left, right = (min((side for side in pair if side is not None), default=None) for pair in sides)
    else:
        left, right = (None if None in pair else max(pair) for pair in sides)  # type: ignore[type-var]
    return Window(left, right, a.align)
