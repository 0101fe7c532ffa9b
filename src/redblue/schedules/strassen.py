"""Attention by fast matrix multiplication: both products by Strassen's algorithm, in Winograd's form, over tiles.

The bounds for conventional arithmetic (docs/lab/theory.md, Theorems 1 to 3) do not cover it. Neither the planner nor
the operator uses it: its sums of inputs cancel, so its rounding errors are the largest of all schedules, and it moves
fewer words only for d of at least about 40 sqrt(M).

One level replaces a product by seven of half the size. It writes four sums of blocks of each factor, and reads the
seven results to write four blocks. After `levels` levels, products are output-stationary. The softmax between the two
products reads S twice and writes P.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redblue.base.integers import ceil_div, smaller
from redblue.machine import Machine, Slow, exp, log, maximum
from redblue.problem import Problem
from redblue.schedules.products import score_tile
from redblue.schedules.schedule import Cost, NotCovered, Pass, Schedule, blocks
from redblue.schedules.softmax import LOWEST

# The four sums of each factor, one step for each: held[kept] = held[first] + sign * held[second], which is then stored.
LEFT = ((1, 0, 1, 1), (1, 1, -1, 2), (2, 2, -1, 0), (3, 3, -1, 1))  # held: a21, a22, a11, a12
RIGHT = ((1, 0, -1, 1), (1, 2, -1, 1), (2, 2, -1, 0), (3, 1, -1, 3))  # held: b12, b11, b22, b21


class Tiles(NamedTuple):
    rows: Any  # output-stationary tile: rows and columns of the result
    cols: Any
    width: Any  # words per piece of a row, where blocks are summed and where the softmax is taken
    levels: int = 1  # levels of Strassen's recursion


def forward(m: Machine, problem: Problem, t: Tiles, q: Slow, k: Slow, v: Slow, out: Slow, lse: Slow) -> None:
    _check(problem, t.levels)
    s, p = (m.scratch(name, (problem.n_q, problem.n_k)) for name in "sp")
    multiply(m, t, s, q, k, t.levels)
    _softmax(m, s, p, lse, t.width, problem.d**-0.5)
    multiply(m, t, out, p, v.T, t.levels)


def multiply(m: Machine, t: Tiles, result: Slow, left: Slow, right: Slow, levels: int) -> None:
    """Compute result = left @ right.T, whose lengths are multiples of 2^levels."""
    if not levels:
        for i in blocks(result.shape[0], t.rows):
            for j in blocks(result.shape[1], t.cols):
                tile = score_tile(m, result.name, left, right, i, j, 1)
                m.store(result[i, j], tile)
                m.free(tile)
        return
    (a11, a12, a21, a22), (b11, b21, b12, b22) = quarters(left), quarters(right)  # right is transposed
    s1, s2, s3, s4 = _sums(m, t.width, (a21, a22, a11, a12), LEFT)
    t1, t2, t3, t4 = _sums(m, t.width, (b12, b11, b22, b21), RIGHT)
    factors = (a11, b11), (a12, b21), (s4, b22), (a22, t4), (s1, t1), (s2, t2), (s3, t3)
    products = []
    for number, (x, y) in enumerate(factors, 1):
        products.append(m.scratch(f"p{number}", (x.shape[0], y.shape[0])))
        multiply(m, t, products[-1], x, y, levels - 1)
    _join(m, t.width, products, quarters(result))


def quarters(array: Slow) -> tuple[Slow, Slow, Slow, Slow]:
    """Return the blocks 11, 12, 21 and 22 of an array."""
    rows, cols = (tuple(blocks(length, length // 2)) for length in array.shape)
    first, second, third, fourth = (array.part(i, f) for i in rows for f in cols)
    return first, second, third, fourth


def _pieces(array: Slow, width: int) -> list[tuple[range, range]]:
    rows, cols = array.shape
    return [(range(i, i + 1), f) for i in range(rows) for f in blocks(cols, width)]


def _sums(m: Machine, width: int, parts: tuple[Slow, ...], steps: Sequence[tuple[int, int, int, int]]) -> list[Slow]:
    """Write the four sums of the blocks of one factor, each word read once; see LEFT and RIGHT."""
    sums = [m.scratch(f"sum{number}", parts[0].shape) for number in range(1, 5)]
    for place in _pieces(parts[0], width):
        held = [m.load(part[place]) for part in parts]
        for target, (kept, first, sign, second) in zip(sums, steps, strict=True):
            held[kept][...] = held[first] + held[second] * sign
            m.store(target[place], held[kept])
        m.free(*held)
    return sums


def _join(m: Machine, width: int, products: list[Slow], result: tuple[Slow, Slow, Slow, Slow]) -> None:
    """Add the seven products up to the four blocks of the result, each word read once."""
    first, second, third, fourth, fifth, sixth, seventh = products
    c11, c12, c21, c22 = result
    for place in _pieces(first, width):
        total, other = m.load(first[place]), m.load(second[place])
        other += total
        m.store(c11[place], other)
        m.free(other)
        other = m.load(sixth[place])
        total += other  # P1 + P6
        m.free(other)
        both, other = m.load(seventh[place]), m.load(fourth[place])
        both += total  # P1 + P6 + P7
        other[...] = both - other
        m.store(c21[place], other)
        m.free(other)
        other = m.load(fifth[place])
        both += other
        m.store(c22[place], both)
        m.free(both)
        total += other
        m.free(other)
        other = m.load(third[place])
        total += other
        m.store(c12[place], total)
        m.free(total, other)


def _softmax(m: Machine, s: Slow, p: Slow, lse: Slow, width: int, scale: float) -> None:
    """Write the softmax of each row of scale * s to p, and its log-sum-exp to lse."""
    for i in blocks(s.shape[0], 1):
        row_max, row_sum = m.full("row_max", (1,), LOWEST), m.zeros("row_sum", 1)
        for j in blocks(s.shape[1], width):
            piece = m.load(s[i, j])
            piece *= scale
            new_max = m.new("new_max", maximum(row_max, piece.max(axis=1)))
            row_sum *= exp(row_max - new_max)
            row_max[...] = new_max
            piece[...] = exp(piece - row_max[:, None])
            row_sum += piece.sum(axis=1)
            m.free(piece, new_max)
        row_max += log(row_sum)
        m.store(lse[i], row_max)
        for j in blocks(s.shape[1], width):
            piece = m.load(s[i, j])
            piece[...] = exp(piece * scale - row_max[:, None])
            m.store(p[i, j], piece)
            m.free(piece)
        m.free(row_max, row_sum)


def product_words(rows: int, cols: int, depth: int, t: Tiles, levels: int) -> tuple[int, int]:
    """Return the words that `multiply` reads and writes, for a result of rows x cols and sums of `depth` products."""
    if not levels:
        return depth * (rows * ceil_div(cols, t.cols) + cols * ceil_div(rows, t.rows)), rows * cols
    rows, cols, depth = rows // 2, cols // 2, depth // 2
    reads, writes = product_words(rows, cols, depth, t, levels - 1)
    sums = 4 * depth * (rows + cols)
    return 7 * reads + sums + 7 * rows * cols, 7 * writes + sums + 4 * rows * cols


def cost(p: Problem, t: Tiles) -> Cost:
    _check(p, t.levels)
    scores, output = ((p.n_q, p.n_k, p.d), (p.n_q, p.d_v, p.n_k))
    (score_reads, score_writes), (out_reads, out_writes) = (product_words(*x, t, t.levels) for x in (scores, output))
    pairs = p.n_q * p.n_k
    reads, writes = score_reads + out_reads + 2 * pairs, score_writes + out_writes + pairs + p.n_q
    flops = sum(2 * n * m * k for n, m, k in (scores, output)) // 8**t.levels * 7**t.levels
    return Cost(reads, writes, peak(p, t), flops)


def peak(p: Problem, t: Tiles) -> int:
    """Return the most words held, by an output-stationary tile with two slices, a sum of blocks, or the softmax."""
    cuts = 2**t.levels  # parts into which the recursion cuts every axis
    tile = max(
        r * c + r + c
        for r, c in (
            (smaller(t.rows, p.n_q // cuts), smaller(t.cols, p.n_k // cuts)),
            (smaller(t.rows, p.n_q // cuts), smaller(t.cols, p.d_v // cuts)),
        )
    )
    sums = max(4 * min(t.width, max(p.n_k, p.d) // 2), 3 * min(t.width, p.d_v // 2)) if t.levels else 0
    return max(tile, sums, min(t.width, p.n_k) + 3)


def _check(p: Problem, levels: int) -> None:
    """Raise NotCovered unless each level halves every axis."""
    for axis in ("n_q", "n_k", "d", "d_v"):
        if getattr(p, axis) % 2**levels:
            raise NotCovered(
                f"strassen with {levels} levels halves every axis {levels} times, got {axis} = {getattr(p, axis)}: "
                f"give a multiple of {2**levels}, or fewer levels"
            )


schedule = Schedule(
    name="strassen",
    title="Attention by Strassen's algorithm (Winograd's form)",
    source="Strassen 1969, Winograd 1971; as a schedule derived here",
    passes={"forward": Pass(forward, Tiles, cost)},
    drop_in=False,
    spills=True,
    full_only=True,
)
