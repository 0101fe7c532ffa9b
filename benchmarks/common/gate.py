"""Correctness first: the errors that a contender may have, before anything is timed.

redblue must be no further from float64 than twice the unfused PyTorch expression in the same type, as everywhere in
this project. A peer must be near enough to compute the same function; otherwise it is left out of its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch  # pyright: ignore[reportMissingImports]

MAX_OURS, MAX_PEER = 2.0, 4.0  # times the error of the unfused expression


class Red(Exception):
    """redblue gave a wrong result: no number is worth printing."""


def relative_errors(results: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    """The relative error of each result, in the Frobenius norm."""
    pairs = zip(results, exact, strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]


def within(errors: Sequence[float], allowed: Sequence[float], factor: float) -> bool:
    """Whether each error is at most `factor` times the allowed one. False for NaN."""
    return all(a <= factor * b for a, b in zip(errors, allowed, strict=True))
