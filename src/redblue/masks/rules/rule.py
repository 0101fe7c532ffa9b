"""The base class of rules: kinds of masks as values without sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from redblue.base.errors import RedblueError
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tiled import tiled

T = TypeVar("T")
Sizes = tuple[int | None, int | None]  # n_q and n_k; None where a rule takes any number


class Rule(ABC):
    """One kind of mask, with its parameters.

    A rule is a value: it is hashable, and rules with equal parameters are equal. Its repr is the call of the Mask
    constructor that makes it.
    """

    # How the parts are composed: np.bitwise_and, np.bitwise_or or np.invert; None for other rules
    operator: ClassVar[Any] = None

    @property
    def parts(self) -> tuple[Rule, ...]:
        """The rules that this rule is composed of; () for a simple rule."""
        return ()

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the cached properties, so that pickles and hashes of pickles are those of the value."""
        own: Any = self  # every rule that is pickled by its state is a dataclass
        return {field.name: getattr(self, field.name) for field in fields(own)}

    def __copy__(self) -> Rule:
        return self  # a value never changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        return self

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
        """Return the pattern on n_q queries and n_k keys, for the algebra. Raises RedblueError if they do not fit."""

    def pair_count(self, n_q: int, n_k: int) -> int | None:
        """Return the number of attending pairs by a closed form; None if the rule has none."""
        return None

    def on(self, n_rows: int, n_cols: int, group: int) -> Pairs:
        """Return the pairs on rows, `group` per query. Raises RedblueError if the rule does not fit these sizes."""
        return tiled(self, n_rows, n_cols, group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Rule | None:
        """Return the same kind of rule for other (n_q, n_k); None if it has to be sampled (`dense.resized`)."""
        return self if old == new or self.sizes == (None, None) else None


def every_part(rule: Rule) -> list[Rule]:
    """List a rule and all rules that it is composed of, each object once, parts before the rule made of them.

    Rules may be composed thousands of levels deep, which recursion cannot reach.
    """
    done: dict[int, Rule] = {}
    pending = [rule]
    while pending:
        last = pending[-1]
        missing = [part for part in last.parts if id(part) not in done]
        if missing:
            pending += missing
        else:
            done.setdefault(id(pending.pop()), last)
    return list(done.values())


def fold(rule: Rule, value_of: Callable[[Rule, list[T]], T]) -> T:
    """Compute a value of a rule from the values of its parts: value_of(rule, [values of rule.parts])."""
    values: dict[int, T] = {}
    for node in every_part(rule):
        values[id(node)] = value_of(node, [values[id(part)] for part in node.parts])
    return values[id(rule)]


def check_sizes(name: str, sizes: Sizes, n_q: int, n_k: int, advice: str) -> None:
    """Raise RedblueError if a rule for `sizes` is used with another n_q or n_k. name: the rule, for the error."""
    for axis, required, actual in zip(("n_q", "n_k"), sizes, (n_q, n_k), strict=True):
        if required is not None and required != actual:
            raise RedblueError(f"{name} is for {axis} = {required:,}, but {axis} = {actual:,} was given: {advice}")


def common_sizes(sizes: Sequence[Sizes]) -> Sizes:
    """Return the first n_q and the first n_k that are not None."""
    n_q, n_k = zip(*sizes, strict=True)
    return next((n for n in n_q if n is not None), None), next((n for n in n_k if n is not None), None)
