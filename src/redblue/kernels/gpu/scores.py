"""Triton helpers that convert products to scores and scores to probabilities, and the tuple of options they read.

A new option of scores needs a field of `Scores`, its value in `scores_of`, and its arithmetic in `finish` and, for keys
in pages, in `finish_paged`. `is_plain` must return False for an option that changes scores, and `row_terms` loads an
option that has one value per row.

Scores are in units of log 2, so that the softmax is a power of two: p = exp2(left * s - m). `left` is the part of the
scale by which the scores have not been multiplied yet.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

import triton
import triton.language as tl

from redblue.kernels.gpu.arrays import INTERPRETED, Array, index, row_offsets, start
from redblue.kernels.options import Options
from redblue.kernels.positions import HEADER_SIZE
from redblue.kernels.sizes import Sizes

__all__ = ["INTERPRETED"]  # re-exported from arrays.py; kernels import the helpers below by name

STEEP = 1024.0  # with a larger scale, float32 no longer resolves one unit of a score
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# LOWEST is the initial row maximum. It is finite, so that -inf minus the maximum is not NaN. LOWEST_BIAS is the lowest
# finite bias. In units of log 2 it is finite and above LOWEST. Kernels raise a lower finite bias to LOWEST_BIAS, so
# that a row whose biases are all finite always attends its keys. The constants for float64 sums have their own values.
LOWEST = tl.constexpr(-3.0e38)
LOWEST_FLOAT64 = tl.constexpr(-1.7e308)
LOWEST_BIAS = tl.constexpr(-1.3e38)
LOWEST_BIAS_FLOAT64 = tl.constexpr(-8.0e307)


class Number(NamedTuple):
    """A number in the form for kernels: two float32 whose sum has 48 bits, for sums in float64."""

    high: float
    low: float = 0.0


class Alibi(NamedTuple):
    """The slopes (batch, heads) of linear biases: their first element and their strides."""

    pointer: Any
    batch: int
    head: int
    shift: int  # query i has the position of key i + shift


class Places(NamedTuple):
    """The positions of the call's queries and keys in a whole problem; see redblue.kernels.positions."""

    whole: Any  # the whole problem's queries, keys and heads, and the call's first head among these
    queries: Any
    keys: Any
    n_q: int  # queries of the call; the next two fields also belong to the call
    n_k: int
    heads: int  # query heads


class Scores(NamedTuple):
    """The options that change scores between the two products, in the form for kernels; None: the option is off."""

    scale: Number
    softcap: Number | None
    scale_per_softcap: Number | None  # scale / softcap
    first: int | None  # query i attends keys i + first .. i + end - 1
    end: int | None
    bias: Array | None
    alibi: Alibi | None
    places: Places | None  # for alibi and dropout; None: the call is the whole
    sinks: Any  # (heads,)
    seed: Any  # seed of dropout
    keep_threshold: int  # a probability is kept if its 32-bit random word (unsigned) is at least this
    keep_scale: Number  # factor of kept probabilities
    first_row: int  # Task.first_row


class Scored(Protocol):
    """The part of a Task (launch.py) that its scores depend on."""

    @property
    def record(self) -> Options: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def lse(self) -> Any: ...
    @property
    def cut_keys(self) -> int: ...
    @property
    def first(self) -> int | None: ...
    @property
    def end(self) -> int | None: ...
    @property
    def first_row(self) -> int: ...


def scores_of(task: Scored) -> Scores:
    """The task's options in the form that kernels read."""
    record, sizes = task.record, task.sizes
    numbers = record.numbers(sizes)
    scale, softcap, dropout = numbers["scale"], numbers["softcap"], numbers["dropout"]
    wide = task.lse.dtype.itemsize == 8
    threshold = int(dropout * 2**32)
    alibi, bias = record.alibi, record.bias
    shift = sizes.n_k + task.cut_keys - sizes.n_q
    return Scores(
        scale=number_of(scale, wide),
        softcap=number_of(softcap, wide) if softcap else None,
        scale_per_softcap=number_of(scale / softcap, wide) if softcap else None,
        first=task.first,
        end=task.end,
        bias=None if bias is None else Array(bias, *bias.stride()),
        alibi=None if alibi is None else Alibi(alibi, alibi.stride(0), alibi.stride(1), shift),
        places=_places(task) if record.by_position else None,
        sinks=record.sinks,
        seed=record.seed,
        keep_threshold=threshold - 2**32 if threshold >= 2**31 else threshold,
        keep_scale=number_of(1 / (1 - dropout), wide),
        first_row=task.first_row,
    )


def _places(task: Scored) -> Places | None:
    """The task's positions in the form that kernels read."""
    positions, sizes = task.record.positions, task.sizes
    if positions is None:
        return None
    queries, keys = positions[HEADER_SIZE:].split((sizes.n_q, sizes.n_k + task.cut_keys))
    return Places(positions, queries, keys, sizes.n_q, keys.shape[0], sizes.heads)


def is_plain(record: Options, sizes: Sizes) -> bool:
    """Whether scores need only a positive factor that is not large, which can be applied in the exponential."""
    if record.softcap or record.bias is not None or record.alibi is not None:
        return False
    return 0 < record.numbers(sizes)["scale"] <= STEEP


def number_of(x: float, wide: bool) -> Number:
    """Convert x, whose size redblue.kernels.options has checked, for kernels. wide: whether sums are in float64."""
    if not wide:
        return Number(x)
    high = struct.unpack("f", struct.pack("f", x))[0]
    return Number(high, x - high)


@triton.jit
def constant(x: tl.constexpr, SUMS: tl.constexpr):
    """A number known at compile time, in the type of the sums."""
    return tl.full((), x, SUMS)


@triton.jit
def lowest(SUMS: tl.constexpr):
    """The initial row maximum, in the type of the sums."""
    return constant(LOWEST_FLOAT64 if tl.float64 == SUMS else LOWEST, SUMS)


@triton.jit
def number(x, SUMS: tl.constexpr):
    """A Number, in the type of the sums."""
    high = tl.full((), x.high, SUMS)
    return high + tl.full((), x.low, SUMS) if tl.float64 == SUMS else high


@triton.jit
def factor_left(scores, PLAIN: tl.constexpr, SUMS: tl.constexpr):
    """The factor by which the results of `finish` have not been multiplied yet."""
    return number(scores.scale, SUMS) * constant(LOG2E, SUMS) if PLAIN else constant(1.0, SUMS)


@triton.jit
def row_terms(scores, batch, head, i_row, AXIS: tl.constexpr, GROUP: tl.constexpr, SUMS: tl.constexpr):
    """The per-row values of options that `finish` needs, loaded once for all keys; None if there are none.

    Only ALiBi has such values: its slopes in units of log 2, one number if all rows are of one head, else one per row,
    with a dimension AXIS for keys. head: the key head.
    """
    if scores.alibi is not None:
        p_slopes = start(scores.alibi, batch, head * GROUP)
        if GROUP > 1:
            p_slopes += (i_row % GROUP) * scores.alibi.head
        b_slope = tl.load(p_slopes).to(SUMS) * constant(LOG2E, SUMS)
        return b_slope if GROUP == 1 else tl.expand_dims(b_slope, AXIS)


# Tiles of scores have either orientation: i_row, b_terms and m_row are (rows, 1) where i_key and m_key are (1, keys),
# or (1, rows) where i_key and m_key are (keys, 1). b_terms may also be one number.


@triton.jit
def finish(s, scores, batch, head, i_row, i_key, m_row, m_key, b_terms, GROUP: tl.constexpr, PLAIN: tl.constexpr):
    """Scores from products, and the derivative of softcap tanh(x / softcap), which is unused without a softcap.

    head: the key head. m_row, m_key: masks of the rows and keys that exist; None: all. b_terms: from row_terms.
    """
    derivative = s
    if not PLAIN:
        s, derivative = capped(s, scores)
        if scores.alibi is not None:
            s -= b_terms * distance(scores, i_row // GROUP, i_key).to(s.dtype)
        if scores.bias is not None:
            bias = scores.bias
            p_bias = start(bias, batch, head * GROUP) + (row_offsets(bias, i_row, GROUP) + i_key * bias.col)
            s = with_bias(s, p_bias, m_row, m_key)
    return s, derivative


@triton.jit
def finish_paged(s, scores, block, i_key, m_row, m_key, WIDE: tl.constexpr, SUMS: tl.constexpr):
    """As `finish`, for rows of several heads and sequences. block: its rows, a `Rows` of paged/forward.py."""
    s, _ = capped(s, scores)
    if scores.alibi is not None:
        alibi = scores.alibi
        slopes = alibi.pointer + block.sequence.to(tl.int64) * alibi.batch + block.head * alibi.head
        b_slope = tl.load(slopes, mask=m_row, other=0.0).to(SUMS) * constant(LOG2E, SUMS)
        s -= b_slope[:, None] * tl.abs(block.position[:, None] - i_key).to(SUMS)
    if scores.bias is not None:
        # block.query counts the queries of all earlier sequences, so PagedTask.scores subtracts them in bias.batch
        bias = scores.bias
        rows = block.sequence.to(tl.int64) * bias.batch + block.query.to(tl.int64) * bias.row
        rows += block.head.to(tl.int64) * bias.head
        p_bias = (bias.pointer + rows)[:, None] + index(i_key, WIDE) * bias.col
        s = with_bias(s, p_bias, m_row[:, None], None if m_key is None else m_key[None, :])
    return s


@triton.jit
def distance(scores, i_query, i_key):
    """The distances that ALiBi multiplies by its slopes."""
    if scores.places is None:
        return tl.abs(i_query + scores.alibi.shift - i_key)
    else:
        places = scores.places
        shift = tl.load(places.whole + 1) - tl.load(places.whole)
        queries = tl.load(places.queries + i_query, mask=i_query < places.n_q, other=0)
        return tl.abs(queries + shift - tl.load(places.keys + i_key, mask=i_key < places.n_k, other=0))


@triton.jit
def capped(s, scores):
    """Products times the scale, after softcap, and the softcap's derivative."""
    derivative = s
    if scores.softcap is None:
        s = s * (number(scores.scale, s.dtype) * constant(LOG2E, s.dtype))
    else:
        t = tanh(s * number(scores.scale_per_softcap, s.dtype))
        s = t * (number(scores.softcap, s.dtype) * constant(LOG2E, s.dtype))
        derivative = 1.0 - t * t
    return s, derivative


@triton.jit
def with_bias(s, p_bias, m_row, m_key):
    """Scores plus the biases at p_bias, or -inf where a boolean one is False. m_row, m_key: as in `finish`."""
    if m_row is None and m_key is None:
        b_bias = tl.load(p_bias)
    elif m_row is None:
        b_bias = tl.load(p_bias, mask=m_key, other=0)
    elif m_key is None:
        b_bias = tl.load(p_bias, mask=m_row, other=0)
    else:
        b_bias = tl.load(p_bias, mask=m_row & m_key, other=0)
    if b_bias.dtype.is_int():  # boolean: True attends
        return tl.where(b_bias != 0, s, float("-inf"))
    else:
        b_bias = b_bias.to(s.dtype)
        if p_bias.dtype.element_ty != tl.float16:  # whose lowest number is not below the lowest bias
            floor = constant(LOWEST_BIAS_FLOAT64 if s.dtype == tl.float64 else LOWEST_BIAS, s.dtype)
            b_bias = tl.where((b_bias < floor) & (b_bias > float("-inf")), floor, b_bias)
        return s + b_bias * constant(LOG2E, s.dtype)


@triton.jit
def tanh(x):
    """The hyperbolic tangent; relative error of at most a few units in the last place, 32 in float64."""
    size = tl.abs(x)
    power = tl.exp2(size * (-2.0 * constant(LOG2E, x.dtype)))
    result = (1.0 - power) / (1.0 + power)
    # Near 0 the quotient cancels, so use the series up to terms of a unit in the last place
    y = size * size
    series = constant(62.0 / 2835.0, x.dtype) - y * constant(1382.0 / 155925.0, x.dtype)
    series = constant(-17.0 / 315.0, x.dtype) + y * series
    series = constant(-1.0 / 3.0, x.dtype) + y * (constant(2.0 / 15.0, x.dtype) + y * series)
    result = tl.where(size < (0.3 if x.dtype == tl.float32 else 0.07), size + size * y * series, result)
    return tl.where(x < 0, -result, result)


@triton.jit
def initial_max_and_sum(scores, head, i_row, GROUP: tl.constexpr, SUMS: tl.constexpr):
    """The row maximum and the row sum before any key, which come from the heads' sinks."""
    row_max = tl.full(i_row.shape, lowest(SUMS), SUMS)
    row_sum = tl.zeros(i_row.shape, SUMS)
    if scores.sinks is not None:
        b_sink = tl.load(scores.sinks + head * GROUP + i_row % GROUP).to(SUMS) * constant(LOG2E, SUMS)
        row_max = tl.maximum(b_sink, row_max)
        row_sum = tl.where(b_sink == float("-inf"), row_sum, 1.0)
    return row_max, row_sum


@triton.jit
def load_lse(p_lse, m_row):
    """Load rows' log-sum-exp in units of log 2.

    A row without scores gets +inf, so that the probabilities exp2(s - lse) of its keys are 0.
    """
    b_lse = tl.load(p_lse) if m_row is None else tl.load(p_lse, mask=m_row, other=float("inf"))
    return tl.where(b_lse == float("-inf"), float("inf"), b_lse * constant(LOG2E, b_lse.dtype))


@triton.jit
def exp2_below(s, row_max, PLAIN: tl.constexpr):
    """exp2(s - row_max). As s exceeds `row_max` only by rounding, the result is limited to 1, except for plain scores.

    If `row_max` is so large that its own rounding error spans several units, it is first lowered by this error.
    The dominant score of a row then has the weight 1, not 0, however the compiler fuses products and sums,
    and whichever array stored `row_max`.
    """
    if PLAIN:
        return tl.exp2(s - row_max)
    else:
        step = constant(2.0**-20 if s.dtype == tl.float32 else 2.0**-49, s.dtype)
        size = tl.abs(row_max)
        lowered = tl.where((size * step > 16.0) & (size < float("inf")), row_max - size * step, row_max)
        return tl.exp2(tl.where(s > lowered, 0.0, s - lowered))


@triton.jit
def keep_factors(scores, numbers, j, COLS: tl.constexpr, SUMS: tl.constexpr):
    """Dropout's factors (rows, COLS) of keys j ..: 0, or 1 / (1 - dropout) where the probability is kept.

    Philox 4x32-10 (Salmon et al., SC 2011) of (number of the row, number of the key // 4) in the whole problem, as in
    the C++ core: the factors do not depend on the tiles. j: a multiple of 4.
    """
    counter = numbers + scores.first_row
    least = tl.full((), scores.keep_threshold, tl.int32).to(tl.uint32, bitcast=True)
    if scores.places is None:
        quarters = j // 4 + tl.arange(0, COLS // 4)
        a, b, c, d = _random_words(scores, counter, quarters)
        a, b = (a >= least).to(tl.int8), (b >= least).to(tl.int8)
        c, d = (c >= least).to(tl.int8), (d >= least).to(tl.int8)
        kept = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (numbers.shape[0], COLS)) != 0
    else:  # adjacent keys of the call may belong to different groups of four in the whole problem
        places, i_key = scores.places, j + tl.arange(0, COLS)
        position = tl.load(places.keys + i_key, mask=i_key < places.n_k, other=0)
        a, b, c, d = _random_words(scores, _number_in_whole(places, counter), position >> 2)
        nth = (position & 3)[None, :]
        kept = tl.where(nth < 2, tl.where(nth == 0, a, b), tl.where(nth == 2, c, d)) >= least
    return tl.where(kept, number(scores.keep_scale, SUMS), 0.0)


@triton.jit
def _random_words(scores, rows, quarters):
    """Philox's four words, (rows, quarters) each."""
    quarters = quarters.to(tl.uint32)[None, :]
    rows, zero = rows[:, None], quarters * 0
    low, high = rows.to(tl.uint32) + zero, (rows >> 32).to(tl.uint32) + zero
    quarters = quarters + low * 0
    return tl.philox(tl.load(scores.seed), low, high, quarters, quarters * 0)


@triton.jit
def _number_in_whole(places, numbers):
    """Convert row numbers within the call to row numbers within the whole problem."""
    head = numbers // places.n_q
    n_q, heads, first_head = tl.load(places.whole), tl.load(places.whole + 2), tl.load(places.whole + 3)
    head_in_whole = head // places.heads * heads + first_head + head % places.heads
    return head_in_whole * n_q + tl.load(places.queries + numbers % places.n_q)
