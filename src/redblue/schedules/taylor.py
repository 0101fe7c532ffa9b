"""Approximate attention: the exponential is replaced by its Taylor polynomial, a product of features of q and of k.

exp(s) is replaced by sum over t <= degree of s^t / t!, s = q.k / sqrt(d). This polynomial is phi(q).phi(k), where phi
has one feature for each monomial of degree <= `degree` in d variables: r = C(d + degree, degree) features. Then
O = phi(Q) (phi(K)^T V), divided by phi(Q) (phi(K)^T 1), so n keys become r rows of F = phi(K)^T [V, 1], and no term is
quadratic in n. This is the polynomial method of Alman & Song (arXiv 2302.13214), as a schedule: a *reconstruction*, and
not the algorithm of Papp, Sobczyk & Zouzias (arXiv 2605.23751), who develop I/O-efficient algorithms from it.

The result is exact only for the polynomial: its error grows with the scores (docs/lab/fast-and-approximate.md). An even
degree keeps the sums positive for all scores. Features are computed in the cache and never moved. If F fits, every
input is read once and every output written once; otherwise F is written, and streams by blocks of queries, as keys do
in `flash`: 4 n r d^2 / M words instead of 4 n^2 d^2 / M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations_with_replacement, groupby, islice
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, larger, smaller
from redblue.machine import Machine, Slow, Tile, log
from redblue.problem import Problem
from redblue.schedules.schedule import Cost, Pass, Schedule, Scores, blocks
from redblue.schedules.search import edges

DEGREES = (2, 4, 6)


class Tiles(NamedTuple):
    rows: Any  # queries that stay while F streams by, or that stream by together while F stays
    cols: Any  # keys that stream by together
    features: Any  # rows of F that stay while keys stream by: all r if F never leaves the cache
    streamed: Any = 1  # rows of F that stream by together, beside queries


def rank(d: int, degree: int) -> int:
    """Return r, the number of monomials of degree <= `degree` in d variables."""
    return math.comb(d + degree, degree)


def monomials(d: int, degree: int) -> Iterator[tuple[int, ...]]:
    """Yield each monomial as the indices of its variables, with repetition."""
    for power in range(degree + 1):
        yield from combinations_with_replacement(range(d), power)


def features(m: Machine, x: Tile, chosen: list[tuple[int, ...]]) -> Tile:
    """Compute the chosen features of the rows of x in a new tile.

    The feature of a monomial of degree t is the product of its variables, divided by d^(t/4), and divided by the square
    root of the product of the factorials of its powers.
    """
    phi = m.full("phi", (x.shape[0], len(chosen)), 1.0)
    for column, variables in enumerate(chosen):
        powers = math.prod(math.factorial(len(list(same))) for _, same in groupby(variables))
        value = phi[:, column : column + 1]
        for variable in variables:
            value *= x[:, variable : variable + 1]
        value *= x.shape[1] ** (-len(variables) / 4) / math.sqrt(powers)
    return phi


def forward(
    m: Machine, problem: Problem, t: Tiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow, *, degree: int
) -> None:
    r, every = rank(problem.d, degree), monomials(problem.d, degree)
    f, f_sum = (None, None) if t.features >= r else (m.scratch("f", (r, problem.d_v)), m.scratch("f_sum", (r,)))
    for g in blocks(r, t.features):
        chosen = list(islice(every, len(g)))
        f_g, sum_g = m.zeros("f_g", len(g), problem.d_v), m.zeros("sum_g", len(g))
        for j in blocks(problem.n_k, t.cols):
            k_j, v_j = m.load(k[j]), m.load(v[j])
            phi = features(m, k_j, chosen)
            f_g += phi.T @ v_j
            sum_g += phi.sum(axis=0)
            m.free(k_j, v_j, phi)
        if f is None or f_sum is None:
            _outputs(m, problem, t, q, out, lse, partial(iter, [(chosen, f_g, sum_g)]))
        else:
            m.store(f[g], f_g)
            m.store(f_sum[g], sum_g)
        m.free(f_g, sum_g)
    if f is not None and f_sum is not None:
        _outputs(m, problem, t, q, out, lse, partial(_streamed, m, f, f_sum, t.streamed, problem.d, degree))


def _streamed(m: Machine, f: Slow, f_sum: Slow, rows: int, d: int, degree: int) -> Iterator[tuple[list, Tile, Tile]]:
    """Load F, `rows` rows at a time, and free them after use."""
    every = monomials(d, degree)
    for g in blocks(f.shape[0], rows):
        f_g, sum_g = m.load(f[g]), m.load(f_sum[g])
        yield list(islice(every, len(g))), f_g, sum_g
        m.free(f_g, sum_g)


def _outputs(m: Machine, problem: Problem, t: Tiles, q: Slow, out: Slow, lse: Slow, parts: Any) -> None:
    """Write O and the log-sum-exp. parts(): yields features with their rows of F and of its sums, once per block."""
    for i in blocks(problem.n_q, t.rows):
        q_i, out_i, row_sum = m.load(q[i]), m.zeros("out_i", len(i), problem.d_v), m.zeros("row_sum", len(i))
        for chosen, f_g, sum_g in parts():
            phi = features(m, q_i, chosen)
            out_i += phi @ f_g
            phi *= sum_g
            row_sum += phi.sum(axis=1)
            m.free(phi)
        out_i /= row_sum[:, None]
        row_sum[...] = log(row_sum)
        m.store(out[i], out_i)
        m.store(lse[i], row_sum)
        m.free(q_i, out_i, row_sum)


def peak(p: Problem, t: Tiles, degree: int) -> Any:
    r, width = rank(p.d, degree), p.d_v + 1
    f, c, rows = smaller(t.features, r), smaller(t.cols, p.n_k), smaller(t.rows, p.n_q)
    keys = f * width + c * (p.d + p.d_v) + c * f
    beside = r * (f >= r) + min(t.streamed, r) * (f < r)  # rows of F that are in the cache beside queries
    return larger(keys, rows * (p.d + width) + beside * (width + rows))


def cost(p: Problem, t: Tiles, degree: int) -> Cost:
    r, width = rank(p.d, degree), p.d_v + 1
    stored = r * width * (t.features < r)  # words of F, if it leaves the cache
    reads = ceil_div(r, t.features) * p.n_k * (p.d + p.d_v) + p.n_q * p.d + stored * ceil_div(p.n_q, t.rows)
    flops = 2 * r * p.d_v * (p.n_k + p.n_q)
    return Cost(reads, p.n_q * width + stored, peak(p, t, degree), flops)


def tiles(p: Problem, words: int, multiple: Mapping[str, int], degree: int) -> Tiles | None:
    """Return the tiles that move the fewest words. The search tries the shortest and the longest edges that fit."""
    r, cols, streamed = rank(p.d, degree), min(multiple["cols"], p.n_k), multiple["streamed"]
    longest_rows = edges(p.n_q, multiple["rows"])
    streaming = Tiles(longest_rows, cols, 1, streamed)
    rows = longest_rows[peak(p, streaming, degree) <= words]
    kept = edges(r, multiple["features"])
    kept = kept[peak(p, Tiles(min(multiple["rows"], p.n_q), cols, kept, streamed), degree) <= words]
    if not len(rows) or not len(kept):
        return None
    candidates = [Tiles(int(i), cols, int(g), streamed) for i in (rows[0], rows[-1]) for g in (kept[0], kept[-1])]
    fitting = [candidate for candidate in candidates if peak(p, candidate, degree) <= words]
    return min(fitting, key=lambda candidate: cost(p, candidate, degree).words, default=None)


def _schedule(degree: int) -> Schedule:
    one_pass = Pass(
        partial(forward, degree=degree),
        Tiles,
        partial(cost, degree=degree),
        partial(tiles, degree=degree),
        scores=lambda p, t: Scores(t.rows, p.n_k),  # no scores are computed, but a block of rows takes moves
    )
    return Schedule(
        name=f"taylor_{degree}",
        title=f"Approximate attention: features of the Taylor polynomial of degree {degree}",
        source="a reconstruction after Alman & Song, NeurIPS 2023 (arXiv 2302.13214)",
        passes={"forward": one_pass},
        drop_in=False,
        safe=False,
        full_only=True,
    )


SCHEDULES = {schedule.name: schedule for schedule in map(_schedule, DEGREES)}
