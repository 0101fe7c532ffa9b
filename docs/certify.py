"""Find good weights for the phase problem, and certify them: writes src/redblue/bounds/phases.csv (`make certify`).

The best weights minimise the largest gain of a phase. That is a linear program with one constraint per way to use a
phase's words, solved by cutting planes: find the phases that gain most with the current weights, add their constraints,
solve again. Correctness depends only on the final certificate, from branch and bound (redblue.bounds.phases).
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from rich.progress import track
from scipy.optimize import linprog

from redblue.bounds.phases import CONSUMERS, PhaseProblem, Point, Weights, certify, value
from redblue.bounds.table import TABLE

STEP = 1.2  # from one xi to the next
NODES = [0.004 * STEP**i for i in range(50)]
RATIOS = (1, 8 / 9, 2 / 3, 1 / 2, 3 / 2, 2)  # d_v / d
GAP, BOXES = 0.01, 1 << 20
ROUNDS, CUTS, SAMPLES = 14, 24, 8000
# Backward the weights of the scores are 0, because a pass with P given does not form them.
UNUSED = {"forward": ("dp", "dp_start", "ds"), "backward": ("scores", "scores_start"), "gradient_x": ()}


def samples(direction: str, rng: np.random.Generator) -> Point:
    """Return random ways to use a phase's words, many of them near the boundary, where optima tend to lie."""
    shares = rng.dirichlet(np.full(5, 0.4), SAMPLES).T
    if CONSUMERS[direction] == 0:
        shares[2:4] = 0
    return Point(shares[0], shares[1] / 2, shares[2], shares[3] / 2)


def earnings(problem: PhaseProblem, x: Point) -> np.ndarray:
    """Return the derivative of the gain at x by each weight, of shape (6, points)."""
    w, rows = problem.weights, {}
    for name, t, share in (
        ("scores", x.t1, x.alpha / problem.xi),
        ("dp", x.t2, x.beta / problem.xi_v),
    ):
        weight, start = getattr(w, name), getattr(w, name + "_start")
        worked = np.maximum(t, (share * max(1.0, weight / (2 * start) if start else 1.0)) ** 2)
        rows |= {name: share * np.sqrt(worked), name + "_start": t - worked}
    for name in ("ds", "p"):
        up, down = (max(0.0, getattr(w, name) + h) for h in (1e-5, -1e-5))
        gains = (value(_with(problem, w._replace(**{name: weight})), x) for weight in (up, down))
        rows[name] = np.subtract(*gains) / (up - down)
    return np.array([rows[name] for name in Weights._fields])


def _with(problem: PhaseProblem, weights: Weights) -> PhaseProblem:
    return PhaseProblem(problem.direction, problem.xi, problem.xi_v, weights)


def best_weights(direction: str, xi: float, xi_v: float, start: Weights) -> Weights:
    """Return the best weights that cutting planes find from `start`."""
    rng = np.random.default_rng(0)
    total = np.array([Weights(*row).total(direction) for row in np.eye(6)])
    # start <= weight / 2 keeps the chains' bound exact, and start > 0 keeps it finite
    limits = np.array([[-0.5, 1, 0, 0, 0, 0], [0.01, -1, 0, 0, 0, 0], [0, 0, -0.5, 1, 0, 0], [0, 0, 0.01, -1, 0, 0]])
    bounds = [(0, 0 if name in UNUSED[direction] else 10) for name in Weights._fields]
    weights, best, cuts = start, (np.inf, start), []
    points = samples(direction, rng)
    for _ in range(ROUNDS):
        problem = PhaseProblem(direction, xi, xi_v, weights)
        gains = value(problem, points)
        top = np.argsort(-gains)[:CUTS]
        near = np.repeat(np.array(points)[:, top], 40, axis=1)  # also sample near the best points
        near = np.abs(near + rng.normal(0, 0.01, near.shape) * (near > 0))
        near = near / np.maximum(1, near[0] + 2 * near[1] + near[2] + 2 * near[3])
        points = Point(*np.concatenate([np.array(points), near], axis=1))
        gains = value(problem, points)
        if gains.max() < best[0]:
            best = (gains.max(), weights)
        top = np.argsort(-gains)[: CUTS * 4 : 4]
        cuts.append(earnings(problem, Point(*np.array(points)[:, top])).T)
        every = np.concatenate(cuts)
        above = np.block([[every, -np.ones((len(every), 1))], [limits, np.zeros((4, 1))]])
        solution = linprog([0] * 6 + [1], above, np.zeros(len(above)), [[*total, 0]], [1], [*bounds, (0, None)])
        if not solution.success:
            break
        weights = Weights(*(0.7 * solution.x[:6] + 0.3 * np.array(best[1])))
        keep = np.argsort(-gains)[:SAMPLES]
        points = Point(*np.array(points)[:, keep])
    return best[1]


START = {
    "forward": Weights(0.6, 0.3, 0, 0, 0, 0.7),
    "backward": Weights(0, 0, 0.28, 0.13, 0.27, 0.31),
    "gradient_x": Weights(0.2, 0.1, 0.3, 0.15, 0.4, 0.35),
}


def row(direction: str, xi: float, ratio: float) -> list[str]:
    """Return one row of the table, with its certified gain."""
    xi, xi_v = (float(f"{x:.6g}") for x in (xi, xi * ratio))
    weights = Weights(*(round(w, 6) for w in best_weights(direction, xi, xi_v, START[direction])))
    for name in ("scores", "dp"):  # a negligible weight becomes 0
        if getattr(weights, name) < 1e-4:
            weights = weights._replace(**{name: 0.0, name + "_start": 0.0})
    gain = certify(PhaseProblem(direction, xi, xi_v, weights), GAP, BOXES).gain / weights.total(direction)
    return [direction, f"{xi:.6g}", f"{xi_v:.6g}", *(f"{w:.6g}" for w in weights), f"{gain * (1 + 1e-7):.8g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=TABLE)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    cases = [(direction, xi, ratio) for ratio in RATIOS for direction in CONSUMERS for xi in NODES]
    table = Parallel(n_jobs=options.jobs, return_as="generator")(delayed(row)(*case) for case in cases)
    with options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["direction", "xi", "xi_v", *Weights._fields, "gain"])
        for cells in track(table, total=len(cases), description="certifying"):
            writer.writerow(cells or [])
            file.flush()


if __name__ == "__main__":
    main()
