"""Look up certified values of the phase problem, and derive bounds from them (docs/lab/theory.md, Theorems 3, 10)."""

from __future__ import annotations

import csv
import math
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_name("phases.csv")  # `make certify` writes this table and the next
STORED = Path(__file__).with_name("phases_stored.csv")
OVERSHOOT = 3  # the most charges that one step adds, where stores count


@cache
def _texts(direction: str, table: Path = TABLE) -> tuple[dict[str, str], ...]:
    with table.open(newline="") as file:
        return tuple(row for row in csv.DictReader(file) if row.pop("direction") == direction)


@cache
def rows(direction: str, table: Path = TABLE) -> tuple[dict[str, float], ...]:
    """Return the table's rows for a direction: xi, xi_v, the weights, and the gain that they certify.

    Rows of STORED also have the column `kept`: the largest M / W for which they are valid.
    """
    return tuple({column: float(value) for column, value in row.items()} for row in _texts(direction, table))


@cache
def _fractions(direction: str, table: Path = TABLE) -> tuple[dict[str, Fraction], ...]:
    """Return the rows exactly."""
    return tuple({column: Fraction(text) for column, text in row.items()} for row in _texts(direction, table))


@cache
def certified(direction: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns xi, xi_v and gain, where gain * W bounds the pairs that a phase of W words can earn."""
    table = rows(direction)
    xi, xi_v, gain = (np.array([row[column] for row in table]) for column in ("xi", "xi_v", "gain"))
    return xi, xi_v, gain


def _values(direction: str, d: int, d_v: int) -> int:
    """Return the numerator of the second term of a row's W: d_v^2, or d d_v in gradient_x with d_v > d.

    A row is valid up to W = min(d^2 / xi^2, numerator / xi_v^2) words, as phase_loads explains.
    In gradient_x, V = A3 Y is computed, so d words of A3 can replace d_v words of V: a word of V counts d / d_v.
    """
    return d * d_v if direction == "gradient_x" and d_v > d else d_v**2


def phase_loads(direction: str, d: int, d_v: int, words: int, pairs: int) -> int:
    """Return a lower bound of loads plus sums begun, for any computation on `pairs` attended pairs.

    The result is the maximum over phase lengths. A row of the table is valid for all xi and xi_v at least as large as
    its own, because a phase can then do less work. So it is valid for phases that touch up to
    W = min((d / xi)^2, (d_v / xi_v)^2) words.
    Floats choose the row; its bound is then computed in fractions, so rounding cannot raise it.
    """
    values = _values(direction, d, d_v)
    xi, xi_v, gain = certified(direction)
    reach = np.floor(np.minimum(d**2 / xi**2, values / xi_v**2))
    length, phases = reach - words, np.ceil(pairs / (gain * np.maximum(reach, 1)))
    best = int(np.where((length >= 1) & (phases >= 2), length * (phases - 1) + float(words), 0).argmax())
    row = _fractions(direction)[best]
    exact = math.floor(min(d**2 / row["xi"] ** 2, values / row["xi_v"] ** 2))
    count = math.ceil(pairs / (row["gain"] * exact))
    return (exact - words) * (count - 1) + words if exact > words and count >= 2 else 0


def stored_charges(direction: str, d: int, d_v: int, words: int, pairs: int) -> int:
    """Return a lower bound of loads, sums begun (counted twice), and stores that loads make necessary (Theorem 10).

    Like phase_loads, except that a row also requires M <= kept W, and a phase takes up to OVERSHOOT more charges than
    L.
    """
    values, best = _values(direction, d, d_v), 0
    for row in _fractions(direction, STORED):
        xi, xi_v, kept, gain = (row[name] for name in ("xi", "xi_v", "kept", "gain"))
        reach = math.floor(min(d**2 / xi**2, values / xi_v**2))
        length = reach - words - OVERSHOOT
        if length >= 1 and words <= kept * reach and (count := math.ceil(pairs / (gain * reach))) >= 2:
            best = max(best, length * (count - 1) + words)
    return best
