"""What every kind of mask is: a rule, which is a value without sizes, and which can be laid on sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from redblue.base.errors import RedblueError
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.rules.tiled import tiled

Sizes = tuple[int | None, int | None]  # n_q and n_k, where a rule knows them


class Rule(ABC):
    """One kind of mask: a value (equality, hash), whose repr reads like the constructor of Mask that makes it."""

    @property
    def is_full(self) -> bool:
        """Whether every query attends every key, however many there are."""
        return False

    @property
    def sizes(self) -> Sizes:
        """The n_q and n_k that the rule is for; None where it takes any."""
        return None, None

    @property
    def takes_any(self) -> bool:
        """Whether it can be laid on any n_q and n_k, so that leaving it out lets no other sizes pass."""
        return self.sizes == (None, None)

    @abstractmethod
    def laid(self, n_q: int, n_k: int) -> Pattern:
        """The rule on n_q queries and n_k keys, for the algebra. Raises RedblueError where it does not fit."""

    def pairs(self, n_q: int, n_k: int) -> int | None:
        """How many pairs attend, in closed form; None where they are counted by tiles."""
        return None

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        """The rule laid on rows of which `group` belong to each query. Raises RedblueError where it does not fit."""
        return tiled(self, n_rows, n_cols, group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule | None:
        """The same kind of rule for other numbers of queries and keys; None: it must be sampled (dense.resized)."""
        return self if old == new or self.sizes == (None, None) else None


def fits(what: str, has: Sizes, n_q: int, n_k: int, remedy: str) -> None:
    """Raises RedblueError if a rule that knows its sizes is laid on others."""
    for name, own, given in zip(("n_q", "n_k"), has, (n_q, n_k), strict=True):
        if own is not None and own != given:
            raise RedblueError(f"{what} is for {name} = {own:,}, but {name} = {given:,} was given: {remedy}")
