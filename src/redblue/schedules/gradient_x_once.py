"""Gradient with respect to X of arXiv 2410.09397, for a cache that holds all keys: each word moves once.

A2, V = A3 Y, X and dX stay. Queries stream by: P, O and dS A2 of a row never leave the cache. If every
query and every key has an attended pair, the words equal the bound of Theorem 0 (docs/lab/theory.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.base.integers import larger, smaller
from redblue.machine import Machine, Slow
from redblue.problem import Problem
from redblue.schedules.schedule import Cost, Pass, Schedule, Scores, Sweep, blocks, grid, within
from redblue.schedules.softmax import softmax_tile


class Tiles(NamedTuple):
    rows: Any  # queries that stream by together
    cols: Any  # rows of A3 that stream by together


def gradient(
    m: Machine, problem: Problem, t: Tiles, a1: Slow, a2: Slow, a3: Slow, e: Slow, x: Slow, y: Slow, dx: Slow
) -> None:
    pairs, keys, features = problem.mask.on(problem.n_q, problem.n_k), range(problem.n_k), range(problem.d)
    weights, v = m.load(y[features]), m.zeros("v", problem.n_k, problem.d_v)
    for j in blocks(problem.n_k, t.cols):
        a3_j, v_j = m.load(a3[j]), v[within(j, keys)]
        v_j += a3_j @ weights
        m.free(a3_j)
    m.free(weights)
    k, weights, gradient = m.load(a2[keys]), m.load(x[features]), m.zeros("dx", problem.d, problem.d)
    for i in grid(m.cols_of(pairs.T, keys), t.rows, problem.n_q):
        a1_i = m.load(a1[i])
        q_i = m.new("q_i", a1_i @ weights * (1 / problem.d))
        p = m.new("p", q_i @ k.T)
        if not m.holds(pairs, i, keys):
            p[...] = m.where(pairs, i, keys, p, -np.inf)
        softmax_tile(m, p)
        m.free(q_i)
        out_i, c_i = m.new("out_i", p @ v), m.load(e[i])
        c_i[...] = out_i - c_i  # the gradient with respect to out
        delta_i = m.new("delta_i", (c_i * out_i).sum(axis=1))
        m.free(out_i)
        p *= c_i @ v.T - delta_i[:, None]  # now dS
        m.free(c_i, delta_i)
        g_i = m.new("g_i", p @ k * (1 / problem.d))
        gradient += a1_i.T @ g_i
        m.free(a1_i, p, g_i)
    m.store(dx[features], gradient)
    m.free(v, k, weights, gradient)


def gradient_cost(p: Problem, t: Tiles) -> Cost:
    pairs, d, d_v = p.mask.on(p.n_q, p.n_k), p.d, p.d_v
    live = pairs.sums(t.rows, p.n_k)
    reads = live.rows * (d + d_v) + 2 * p.n_k * d + d * d_v + d**2
    flops = 2 * p.n_k * d * d_v + 4 * live.rows * d**2 + 4 * (d + d_v) * live.rows * p.n_k
    r, c = smaller(t.rows, p.n_q), smaller(t.cols, p.n_k)
    projecting = d * d_v + p.n_k * d_v + c * d
    streaming = p.n_k * (d + d_v) + 2 * d**2 + r * (p.n_k + d + 1 + max(d, 2 * d_v))
    return Cost(reads, d**2, larger(projecting, streaming), flops)


def gradient_tiles(p: Problem, words: int, multiple: Mapping[str, int]) -> Tiles | None:
    tiles = Tiles(min(multiple["rows"], p.n_q), min(multiple["cols"], p.n_k))  # the words do not depend on them
    return tiles if gradient_cost(p, tiles).peak <= words else None


schedule = Schedule(
    name="gradient_x_once",
    title="The gradient with respect to X for a cache that holds all keys: each word moves once",
    source="derived for redblue: docs/lab/theory.md, 'Few blocks'",
    passes={
        "gradient_x": Pass(
            gradient,
            Tiles,
            gradient_cost,
            gradient_tiles,
            lambda p, t: (Sweep("cols", max(1, p.n_k)),),
            lambda p, t: Scores(t.rows, max(1, p.n_k)),
        )
    },
    variant=True,
)
