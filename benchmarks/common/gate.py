"""The errors allowed to a contender; they are checked before anything is timed.

The error of redblue against float64 may be at most twice that of the unfused PyTorch expression in the same type, as
everywhere in this project. A peer must be close enough to compute the same function; otherwise its row omits the peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch  # pyright: ignore[reportMissingImports]

MAX_OURS, MAX_PEER = 2.0, 4.0  # times the error of the unfused expression


class Red(Exception):
    """redblue gave a wrong result, so the benchmark prints no numbers."""


def relative_errors(results: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    """The relative error of each result, in the Frobenius norm."""
    pairs = zip(results, exact, strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]


def within(errors: Sequence[float], allowed: Sequence[float], factor: float) -> bool:
    """Whether each error is at most `factor` times the allowed one. False for NaN."""
    return all(a <= factor * b for a, b in zip(errors, allowed, strict=True))
