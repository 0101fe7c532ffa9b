"""Certified values of the phase problem, and the loads that follow from them (docs/theory.md, Theorem 3)."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_name("phases.csv")  # written by `make certify`


def rows(direction: str) -> list[dict[str, str]]:
    """The table's rows for a direction: xi, xi_v, the weights, and the gain that they certify."""
    with TABLE.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["direction"] == direction]


@cache
def certified(direction: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """xi, xi_v, and the most pairs that a phase of W words can earn at these, over W."""
    found = rows(direction)
    xi, xi_v, gain = (np.array([float(row[column]) for row in found]) for column in ("xi", "xi_v", "gain"))
    return xi, xi_v, gain


def phase_loads(direction: str, d: int, d_v: int, words: int, pairs: int) -> int:
    """Loads (and sums begun) of any computation on `pairs` attended pairs: the most that any phase length shows.

    A row of the table holds for every xi and xi_v no smaller than its own, since less fits then: so it holds for
    phases that touch up to W = min((d / xi)^2, (d_v / xi_v)^2) words.
    """
    if direction == "gradient_x" and d_v > d:
        # V = A3 Y is computed: d words of A3 can stand for d_v words of V, so its words count d / d_v each.
        d_v = np.sqrt(d * d_v)
    xi, xi_v, gain = certified(direction)
    reach = np.floor(np.minimum((d / xi) ** 2, (d_v / xi_v) ** 2))
    usable = reach > words
    length, most = reach[usable] - words, gain[usable] * reach[usable]
    loads = length * (np.ceil(pairs / most * (1 - 1e-12)) - 1)
    return int(loads.max(initial=0.0) * (1 - 1e-12))
