"""Find good weights for the phase problem, and certify them: writes src/redblue/bounds/phases*.csv (`make certify`).

The best weights minimise the largest gain of a phase. That is a linear program with one constraint per way to use a
phase's words, solved by cutting planes: find the phases that gain most with the current weights, add their constraints,
solve again. Correctness depends only on the final certificate, from branch and bound (redblue.bounds.phases).
"""

from __future__ import annotations

import argparse
import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import linprog

from redblue.base.progress import progress_bar
from redblue.bounds.phases import CONSUMERS, PhaseProblem, Point, Weights, certify, value
from redblue.bounds.table import STORED, TABLE
from redblue.problem import DIRECTIONS

STEP = 1.2  # from one xi to the next
NODES = [0.004 * STEP**i for i in range(50)]
RATIOS = (1, 8 / 9, 2 / 3, 1 / 2, 3 / 2, 2)  # d_v / d
GAP, BOXES = 0.01, 1 << 20
ROUNDS, JUDGED, CUTS, SAMPLES = 17, 2, 24, 2500
# Backward the weights of the scores are 0, because a pass with P given does not form them.
STORED_DIRECTIONS = ("forward", "recomputed", "gradient_x")
STORED_NODES = [0.4 * 1.15 ** (i / 2) for i in (*range(18), 18, 20, 22, 24)]  # xi, M = 0.3 W
KEPT = 0.3  # M / W, where stores count
UNUSED = {
    "forward": ("dp", "dp_start", "ds"),
    "backward": ("scores", "scores_start"),
    "recomputed": (),
    "gradient_x": (),
}


def samples(direction: str, rng: np.random.Generator) -> Point:
    """Return random ways to use a phase's words, many of them near the boundary, where optima tend to lie."""
    shares = rng.dirichlet(np.full(5, 0.4), SAMPLES).T
    if CONSUMERS[direction] == 0:
        shares[2:4] = 0
    return Point(shares[0], shares[1] / 2, shares[2], shares[3] / 2)


def earnings(problem: PhaseProblem, x: Point) -> np.ndarray:
    """Return the derivative of the gain at x by each weight, of shape (6, points)."""
    rows = {}
    for name, weight in problem.weights._asdict().items():
        step = 0.005 * max(weight, 0.02 * (not name.endswith("start")))
        up, down = (problem.weights._replace(**{name: max(0.0, weight + change)}) for change in (step, -step))
        if weight or name in ("ds", "p"):
            gains = (value(replace(problem, weights=each), x) for each in (up, down))
            rows[name] = np.subtract(*gains) / (getattr(up, name) - getattr(down, name))
    for name, t, share in (("scores", x.t_s, x.alpha / problem.xi), ("dp", x.t_d, x.beta / problem.xi_v)):
        if name not in rows:
            worked = np.maximum(t, share**2)
            rows |= {name: share * np.sqrt(worked), name + "_start": t - worked}
    return np.array([rows[name] for name in Weights._fields])


def best_weights(problem: PhaseProblem) -> Weights:
    """Return the best weights that cutting planes find from those of the problem, as a coarse certificate judges."""
    rng = np.random.default_rng(0)
    points = samples(problem.direction, rng)
    weights, best, cuts, spread = problem.weights, (np.inf, problem.weights), [], 0.4
    for trial in range(ROUNDS):
        tried = replace(problem, weights=weights)
        if trial % JUDGED == 0:
            coarse = certify(tried, 0.03, BOXES >> 3)
            judged = (coarse.gain / weights.total(problem.direction), weights)
            best, spread = (judged, spread) if judged < best else (best, spread * 0.6)
            points = Point(*np.column_stack([np.array(points), coarse.where]))
        gains = value(tried, points, rounds=14)
        top = np.argsort(-gains)[:CUTS]
        near = np.repeat(np.array(points)[:, top], 30, axis=1)  # also sample near the best points
        near = np.abs(near + rng.normal(0, 0.01, near.shape) * (near > 0))
        near = near / np.maximum(1, near[0] + 2 * near[1] + near[2] + 2 * near[3])
        points = Point(*np.concatenate([np.array(points), near], axis=1))
        gains = np.concatenate([gains, value(tried, Point(*near), rounds=14)])
        top = np.argsort(-gains)
        cuts.append(earnings(tried, Point(*np.array(points)[:, top[: CUTS * 4 : 4]])).T)
        weights = _cheapest(problem.direction, np.concatenate(cuts), best[1], spread)
        points = Point(*np.array(points)[:, top[:SAMPLES]])
    return best[1]


def _cheapest(direction: str, cuts: np.ndarray, near: Weights, spread: float) -> Weights:
    """Return the weights within a relative `spread` of others for which the largest gain of all cuts is least."""
    total = np.array([Weights(*row).total(direction) for row in np.eye(6)])
    # start <= weight / 2 keeps the chains' bound exact, and start > 0 keeps it finite
    limits = np.array([[-0.5, 1, 0, 0, 0, 0], [0.01, -1, 0, 0, 0, 0], [0, 0, -0.5, 1, 0, 0], [0, 0, 0.01, -1, 0, 0]])
    bounds = [
        (w * (1 - spread), 0 if name in UNUSED[direction] else w * (1 + spread) + spread / 40)
        for name, w in near._asdict().items()
    ]
    above = np.block([[cuts, -np.ones((len(cuts), 1))], [limits, np.zeros((4, 1))]])
    solution = linprog([0] * 6 + [1], above, np.zeros(len(above)), [[*total, 0]], [1], [*bounds, (0, None)])
    return Weights(*(0.7 * solution.x[:6] + 0.3 * np.array(near))) if solution.success else near


START = {
    "forward": Weights(0.6, 0.3, 0, 0, 0, 0.7),
    "backward": Weights(0, 0, 0.28, 0.13, 0.27, 0.31),
    "recomputed": Weights(0.12, 0.05, 0.18, 0.07, 0.25, 0.31),
    "gradient_x": Weights(0.2, 0.1, 0.3, 0.15, 0.4, 0.35),
}


class Case(NamedTuple):
    """One row to compute: xi = d / sqrt(W), d_v / d, and M / W if stores count, else 1."""

    direction: str
    xi: float
    ratio: float
    kept: float


def cases() -> dict[Path, list[Case]]:
    """Return the rows of the two tables: those of Theorem 3, and those of Theorem 10."""
    return {
        TABLE: [Case(name, xi, ratio, 1) for ratio in RATIOS for name in DIRECTIONS for xi in NODES],
        STORED: [Case(name, xi, 1, KEPT) for name in STORED_DIRECTIONS for xi in STORED_NODES],
    }


def row(case: Case) -> list[str]:
    """Return one row of the table, with its certified gain."""
    xi, xi_v = (float(f"{x:.6g}") for x in (case.xi, case.xi * case.ratio))
    problem = PhaseProblem(case.direction, xi, xi_v, START[case.direction], case.kept)
    weights = Weights(*(round(w, 6) for w in best_weights(problem)))
    for name in ("scores", "dp"):  # a negligible weight becomes 0
        if getattr(weights, name) < 1e-4:
            weights = weights._replace(**{name: 0.0, name + "_start": 0.0})
    gain = certify(replace(problem, weights=weights), GAP, BOXES).gain / weights.total(case.direction)
    sizes = (xi, xi_v, *((case.kept,) if case.kept < 1 else ()), *weights)
    return [case.direction, *(f"{x:.6g}" for x in sizes), f"{gain * (1 + 1e-7):.8g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=TABLE.parent)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    for path, todo in cases().items():
        table = Parallel(n_jobs=options.jobs, return_as="generator")(delayed(row)(case) for case in todo)
        with (options.folder / path.name).open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                ["direction", "xi", "xi_v", *(["kept"] if path == STORED else []), *Weights._fields, "gain"]
            )
            kept = f"and written to {path.name}"
            with progress_bar(f"certifying {path.name}", "rows", len(todo), kept) as move:
                for done, cells in enumerate(table, 1):
                    writer.writerow(cells or [])
                    file.flush()
                    move(done, len(todo))


if __name__ == "__main__":
    main()
