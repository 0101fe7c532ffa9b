"""A user-defined schedule for few keys (a text prompt): all scores of a block of queries stay in the cache.

    python examples/own_schedule.py --figure own.svg
    redblue --plugin examples/own_schedule.py count --n-q 4096 --n-k 77 --d 128 --words 2048

The schedule is written once, as a program. `rb.register_schedule` runs this program on small problems, and raises an
error if a result or the closed form is wrong.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

import redblue as rb
from redblue.machine import exp, log, maximum
from redblue.schedules import Cost, Pass, Schedule, Sweep, blocks
from redblue.studies import sweep

LOWEST = -1e300  # below every score; a row that attends no key keeps it as its maximum


class Tiles(NamedTuple):
    rows: Any  # queries of a block, whose scores stay in the cache
    cols: Any  # keys that are loaded at once


def forward(m, problem, t, q, k, v, out, lse):
    """Compute all scores of a block of queries, feature by feature, then the softmax, then the output by features."""
    pairs, keys = problem.mask.on(problem.n_q, problem.n_k), range(problem.n_k)
    for i in blocks(problem.n_q, t.rows):
        m.cols_of(pairs, i)  # look up the mask
        s = m.zeros("s", len(i), problem.n_k)
        for f in blocks(problem.d, 1):
            q_if = m.load(q[i, f])
            for j in blocks(problem.n_k, t.cols):
                k_jf = m.load(k[j, f])
                s[:, j.start : j.stop] += q_if @ k_jf.T
                m.free(k_jf)
            m.free(q_if)
        s[...] = m.where(pairs, i, keys, s * problem.d**-0.5, -np.inf)
        row_max = m.new("row_max", maximum(s.max(axis=1), LOWEST))
        s[...] = exp(s - row_max[:, None])
        row_sum = m.new("row_sum", s.sum(axis=1))
        s /= maximum(row_sum, 1)[:, None]  # a sum is at least exp(0) = 1, or 0 if the row attends no key
        row_max += log(row_sum)
        m.store(lse[i], row_max)
        m.free(row_max, row_sum)
        for f in blocks(problem.d_v, 1):
            out_if = m.zeros("out_if", len(i), 1)
            for j in blocks(problem.n_k, t.cols):
                v_jf = m.load(v[j, f])
                out_if += s[:, j.start : j.stop] @ v_jf
                m.free(v_jf)
            m.store(out[i, f], out_if)
            m.free(out_if)
        m.free(s)


def cost(p, t):
    """Return the closed form. The search of tiles calls it with arrays of tiles, hence np.minimum and np.maximum."""
    rows, cols = np.minimum(t.rows, p.n_q), np.minimum(t.cols, p.n_k)
    reads = p.n_q * p.d + -(-p.n_q // rows) * p.n_k * (p.d + p.d_v)
    peak = rows * p.n_k + rows + np.maximum(rows, cols)
    return Cost(reads, p.n_q * (p.d_v + 1), peak, 2 * p.n_q * p.n_k * (p.d + p.d_v))


few_keys = Schedule(
    name="few_keys",
    title="All scores of a block of queries in cache",
    source="examples/own_schedule.py",
    passes={"forward": Pass(forward, Tiles, cost, sweeps=lambda p, t: (Sweep("rows", t.rows),))},
)
rb.register_schedule(few_keys, replace=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=2048, help="words that the cache holds")
    parser.add_argument("--figure", help="also draw words over M for all schedules, into this .svg, .png or .html")
    options = parser.parse_args()

    problem = rb.Problem(n_q=4096, n_k=77, d=128)  # cross-attention of an image model: 4096 pixels attend 77 tokens
    bound = rb.lower_bound(problem, words=options.words)
    for name in ("flash", "hybrid", "small_cache", few_keys.name):
        words = rb.count(name, problem, words=options.words).words
        print(f"{name:12} moves {words:>12,} words, {words / bound.words:.2f} times the lower bound")
    print(rb.plan(problem, memory="t4"))
    game = rb.trace("few_keys", rb.Problem(n_q=6, n_k=5, d=3), words=40)
    print(f"as a pebble game: {len(game.moves)} moves, accepted with {game.red} red pebbles")
    if options.figure:
        axes = {"n_q": 4096, "n_k": 77, "d": 128, "words": "512:65536:x2"}
        plotted = sweep.make_sweep(axes)
        print(sweep.draw(plotted, sweep.run(plotted, jobs=1), options.figure, force=True))


if __name__ == "__main__":
    try:
        main()
    except rb.RedblueError as error:
        raise SystemExit(f"error: {error}") from None
