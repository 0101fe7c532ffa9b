"""The textbook expression of attention, and the errors allowed to a contender, which are checked before it is timed.

The error of redblue against float64 may be at most twice that of the unfused PyTorch expression in the same type, as
everywhere in this project. A peer must be close enough to compute the same function; otherwise its row omits the peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

MAX_OURS, MAX_PEER = 2.0, 4.0  # times the error of the unfused expression


class Red(Exception):
    """redblue gave a wrong result, so the benchmark prints no numbers."""


class Refused(Exception):
    """A contender does not support a call; the text is the reason."""


class PeerFailed(Exception):
    """A peer in another process raised an exception, or its process ended or did not answer."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


def why(failure: Exception) -> str:
    """The reason why a contender does not run a call, in one line."""
    if isinstance(failure, (Refused, PeerFailed)):
        return str(failure)
    return ": ".join([type(failure).__name__, *str(failure).strip().splitlines()[:1]])


def scores(
    q: Tensor, k: Tensor, causal: bool = False, attends: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The scores in the type of q, -inf where a query does not attend.

    causal: query i attends the keys up to i. attends: True where a query attends a key. scale: 1 / sqrt(d) if None.
    """
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        attends = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return s if attends is None else s.masked_fill(~attends, float("-inf"))


def unfused(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, attends: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The textbook expression in the type of q: two products and a softmax. The options are those of `scores`."""
    return scores(q, k, causal, attends, scale).softmax(-1) @ v


def relative_errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """The relative error of each result, in the Frobenius norm."""
    pairs = zip(results, exact, strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]


def within(errors: Sequence[float], allowed: Sequence[float], factor: float) -> bool:
    """Whether each error is at most `factor` times the allowed one. False for NaN."""
    return all(a <= factor * b for a, b in zip(errors, allowed, strict=True))


def verdict(contender: str, errors: Sequence[float], allowed: Sequence[float], ours: bool) -> str:
    """The reason why the results of a contender are wrong, or "". Raises Red if the results of redblue are wrong."""
    if within(errors, allowed, MAX_OURS if ours else MAX_PEER):
        return ""
    wrong = f"too far from float64, {max(errors):.1e}; the textbook expression {max(allowed):.1e}"
    if ours:
        raise Red(f"{contender}: {wrong}")
    return wrong
