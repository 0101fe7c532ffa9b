"""The mask of a call as PyTorch's ops take it: numbers and a name, because ops cannot take Python objects."""

from __future__ import annotations

from typing import NamedTuple

from redblue.kernels.sizes import Sizes


class MaskArgument(NamedTuple):
    """The mask argument of PyTorch's ops: the sides of a band, or the name of a mask that is not a band.

    The sides are numbers, so that a compiled graph is valid for every sequence length.
    """

    left: int = -1  # number of keys before its own key that a query attends; -1: all
    right: int = -1  # number of keys after its own key that a query attends; -1: all
    bottom_right: bool = False  # whether the last query's own key is the last key
    name: str = ""  # see redblue.op.pytorch.masks

    def band(self, sizes: Sizes) -> tuple[int | None, int | None]:
        """(first, end): query i attends keys i + first .. i + end - 1; None: no limit on that side."""
        offset = sizes.n_k - sizes.n_q if self.bottom_right else 0
        widest = sizes.n_q + sizes.n_k  # no wider side would exclude a key
        first = None if self.left < 0 else offset - min(self.left, widest)
        return first, None if self.right < 0 else offset + min(self.right, widest) + 1


OPEN = MaskArgument()
