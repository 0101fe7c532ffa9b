"""The gate: before a contender is timed, its results are compared with the textbook expression in float64.

The error of redblue may be at most twice the error of the textbook expression in the same number type, as everywhere in
this project. A peer must be close enough to compute the same function; otherwise the peer is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red, Refused, why

REDBLUE = "redblue"  # the name of redblue among the contenders
MAX_OURS, MAX_PEER = 2.0, 4.0  # times the error of the textbook expression
Results = Sequence[Tensor]  # [out], or the gradients [dq, dk, dv]
Timed = TypeVar("Timed")


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


class Gate(NamedTuple):
    """The check of one call, for which the results in float64 are computed once.

    title: of the call, for messages. exact: the compared results in float64. allowed: the errors of the textbook
    expression. compared: selects the compared part of a contender's results, such as some heads. ours: the names of the
    contenders that are redblue.
    """

    title: str
    exact: list[Tensor]
    allowed: list[float]
    compared: Callable[[Results], list[Tensor]]
    ours: Sequence[str]

    def errors(self, results: Results) -> list[float]:
        return relative_errors(self.compared(results), self.exact)

    def check(self, name: str, results: Results) -> str:
        """The reason why the results of a peer are wrong, or "". Raises Red if the results of redblue are wrong."""
        errors, ours = self.errors(results), name in self.ours
        if within(errors, self.allowed, MAX_OURS if ours else MAX_PEER):
            return ""
        wrong = f"too far from float64, {max(errors):.1e}; the textbook expression {max(self.allowed):.1e}"
        if ours:
            raise Red(f"{name}, {self.title}: {wrong}")
        return wrong


def gate_of(
    title: str,
    textbook: Callable[[torch.dtype], list[Tensor]],
    dtype: torch.dtype,
    compared: Callable[[Results], list[Tensor]] = list,
    ours: Sequence[str] = (REDBLUE,),
) -> Gate:
    """The gate of a call in number type `dtype`. textbook: computes the compared results in a given number type."""
    exact = textbook(torch.float64)
    return Gate(title, exact, relative_errors(textbook(dtype), exact), compared, ours)


def correct(
    gate: Gate,
    contenders: Mapping[str, Callable[[], tuple[Results, Timed]]],
    notes: dict[str, str],
    note_refusals: bool = True,
) -> dict[str, Timed]:
    """Prepare all contenders, and keep those with correct results.

    contenders: functions that return the results of a call and an object with which the call is timed later; `correct`
    returns these objects. The reasons why peers are left out are added to `notes`. Raises Red if redblue is wrong.
    """
    kept = {}
    for name, prepare in contenders.items():
        try:
            results, timed = prepare()
        except Exception as failure:  # no failure of a peer may end the run
            if name in gate.ours and not isinstance(failure, Refused):
                raise
            if note_refusals or not isinstance(failure, Refused):
                notes[name] = why(failure)
            continue
        if reason := gate.check(name, results):
            notes[name] = reason
        else:
            kept[name] = timed
    return kept
