"""Gradient with respect to X for d^2 / 4 <= M <= d^2: rows stay in some products, outputs in the others.

Words are in units of n^2 at leading order, with x = d / sqrt(M) >= 1. Rows of Q stay while P is computed and written
(x^2 + 1), O = P V is output-stationary (2 x), rows of C = O - E stay while P is read and dS is written (x^2 + 2), and
G = dS A2 is output-stationary (2 x): 2 x^2 + 4 x + 3 in total. This holds if x is a whole number; else the minimum of
b + x^2 / b over whole numbers b takes the place of each 2 x. The program is the same as that of `gradient_x_small`.
Derived in this project (docs/lab/theory.md).
"""

from __future__ import annotations

from redblue.schedules.gradient_x_small import gradient_pass
from redblue.schedules.schedule import Schedule

schedule = Schedule(
    name="gradient_x_hybrid",
    title="The gradient with respect to X: P and dS spilled, rows resident in some products, outputs in the others",
    source="derived for redblue: docs/lab/theory.md, 'The regimes'",
    passes={"gradient_x": gradient_pass(stays=True)},
    spills=True,
)
