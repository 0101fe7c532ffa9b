"""One rule for each batch entry and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.numbers import Numbers
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.dense import resized
from redblue.masks.rules.rule import Rule, Sizes, common_sizes


@dataclass(frozen=True)
class Stack(Rule):
    """A rule for each entry of a stack of shape `shape` (batch entries and heads).

    rules: the distinct rules. planes: for each entry, in row-major order, the index of its rule.
    """

    rules: tuple[Rule, ...]
    planes: Numbers
    shape: tuple[int, ...]

    @classmethod
    def of(cls, rules: Sequence[Rule], shape: tuple[int, ...]) -> Stack:
        """Stack one rule per entry of `shape`. Equal rules are stored once."""
        distinct = {rule: i for i, rule in enumerate(dict.fromkeys(rules))}
        return cls(tuple(distinct), Numbers(np.fromiter((distinct[rule] for rule in rules), np.int64)), shape)

    def __repr__(self) -> str:
        entries = [repr(self.rules[i]) for i in self.planes.array]
        if len(entries) > 8:
            entries = [*entries[:3], "...", *entries[-1:]]
        return f"Mask.stack([{', '.join(entries)}], shape={self.shape})"

    @property
    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    @property
    def is_full(self) -> bool:
        return all(rule.is_full for rule in self.rules)

    @property
    def sizes(self) -> Sizes:
        return common_sizes([rule.sizes for rule in self.rules]) if self.rules else (None, None)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        raise RedblueError(
            f"the mask has {len(self.planes)} planes, of shape {self.shape}, for batch entries and heads: take "
            "one of them with mask.plane(i)"
        )

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        raise RedblueError(
            f"one mask is needed, but there are {len(self.planes)}, of shape {self.shape}, for batch entries and "
            "heads: give mask.plane(i)"
        )

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule:
        rules = [resized(rule, old, new) for rule in self.rules]
        return Stack.of([rules[i] for i in self.planes.array], self.shape)


def planes(rule: Rule) -> tuple[tuple[Rule, ...], np.ndarray]:
    """Split a rule into 2-D rules.

    Returns (rules, planes): the rule of entry i of the stack is rules[planes[i]]. For a rule without batch
    entries and heads, `rules` holds the rule itself, and `planes` has shape ().
    """
    if isinstance(rule, Stack):
        return rule.rules, rule.planes.array.reshape(rule.shape)
    return (rule,), np.zeros((), np.int64)
