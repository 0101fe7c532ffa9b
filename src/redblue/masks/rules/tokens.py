"""Rules of whole rows and columns: prefixes, and global tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.masks.numbers import Numbers
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.tokens import FirstKeys, Tokens
from redblue.masks.rules.rule import Rule


@dataclass(frozen=True)
class Prefix(Rule):
    """Every query attends keys 0 .. length - 1."""

    length: int

    def __repr__(self) -> str:
        return f"Mask.prefix({self.length})"

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        return FirstKeys(n_q, n_k, min(self.length, n_k))

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Prefix:
        """Scale the prefix in proportion to n_k."""
        return Prefix(ceil_div(self.length * new[1], old[1]))


@dataclass(frozen=True)
class GlobalTokens(Rule):
    """The tokens at `indices` attend every key, and every query attends them. indices: distinct, ascending."""

    indices: Numbers

    def __repr__(self) -> str:
        return f"Mask.global_tokens({self.indices!r})"

    @property
    def fits_any_sizes(self) -> bool:
        return not len(self.indices)

    def pattern(self, n_q: int, n_k: int) -> Pattern:
        beyond = np.flatnonzero(self.indices.array >= max(n_q, n_k))
        if len(beyond) and max(n_q, n_k):  # with neither queries nor keys, any indices are accepted
            raise RedblueError(
                f"indices[{beyond[0]}] of the global tokens is {self.indices.array[beyond[0]]:,}, but there are only "
                f"{n_q:,} queries and {n_k:,} keys: leave it out"
            )
        return Tokens.of_indices(self.indices.array, n_q, n_k)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> GlobalTokens:
        """Scale the positions of the tokens in proportion to the longer axis."""
        before, after = max(old), max(new)
        return GlobalTokens(Numbers(np.unique(self.indices.array * after // before)))
