"""The base class of rules: kinds of masks as values, which are laid on sizes when they are used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from redblue.base.errors import RedblueError
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiled import tiled

Sizes = tuple[int | None, int | None]  # n_q and n_k; None where a rule takes any number


class Rule(ABC):
    """One kind of mask, with its parameters.

    A rule is a value: it is hashable, and rules with equal parameters are equal. Its repr is the call of the Mask
    constructor that makes it.
    """

    @property
    def is_full(self) -> bool:
        """Whether every query attends every key, whatever the sizes."""
        return False

    @property
    def sizes(self) -> Sizes:
        """The n_q and n_k that the rule is for."""
        return None, None

    @property
    def fits_any_sizes(self) -> bool:
        """Whether the rule fits every n_q and n_k. Only then may a simplification drop it without losing a check."""
        return self.sizes == (None, None)

    @abstractmethod
    def pattern(self, n_q: int, n_k: int) -> Pattern:
        """Lay the rule on n_q queries and n_k keys, for the algebra. Raises RedblueError if it does not fit."""

    def pair_count(self, n_q: int, n_k: int) -> int | None:
        """Return the number of attending pairs by a closed form; None if the rule has none."""
        return None

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        """Lay the rule on rows of which `group` belong to each query. Raises RedblueError if it does not fit."""
        return tiled(self, n_rows, n_cols, group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule | None:
        """Return the same kind of rule for other (n_q, n_k); None if it has to be sampled (`dense.resized`)."""
        return self if old == new or self.sizes == (None, None) else None


def check_sizes(name: str, sizes: Sizes, n_q: int, n_k: int, advice: str) -> None:
    """Raise RedblueError if a rule that is for `sizes` is laid on another n_q or n_k. name: the rule, for the error."""
    for axis, required, actual in zip(("n_q", "n_k"), sizes, (n_q, n_k), strict=True):
        if required is not None and required != actual:
            raise RedblueError(f"{name} is for {axis} = {required:,}, but {axis} = {actual:,} was given: {advice}")


def common_sizes(rules: Sequence[Rule]) -> Sizes:
    """Return the first n_q and the first n_k that one of the rules is for."""
    n_q, n_k = zip(*(rule.sizes for rule in rules), strict=True)
    return next((n for n in n_q if n is not None), None), next((n for n in n_k if n is not None), None)
