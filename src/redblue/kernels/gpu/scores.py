"""What all kernels share: places in arrays, tiles of them, and what happens to scores between the two products.

A row is a query of one of the heads that share a key head: row r is query r // GROUP of head r % GROUP, as on the CPU.
Scores are in units of log 2, so that the softmax is a power of two: p = exp2(left * s - m), where `left` is what of the
scale is still to be multiplied.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)  # what a row's maximum starts from: finite, so that -inf less it is no NaN


# Places -----------------------------------------------------------------------------------------------------------


@triton.jit
def start(x, batch, head):
    """Where the rows of a batch entry's head begin. Offsets between streams may take 64 bits."""
    return x.at + wide(batch) * x.batch + wide(head) * x.head


@triton.jit
def wide(i):
    """A number, a loop's too, in 64 bits."""
    return tl.full((), i, tl.int64)


INTERPRETED = tl.constexpr(not isinstance(start, triton.JITFunction))


@triton.jit
def index(i, WIDE: tl.constexpr):
    """Indices, such that an offset made of them does not overflow."""
    return i.to(tl.int64) if WIDE else i


@triton.jit
def row_offsets(x, i_row, GROUP: tl.constexpr):
    """Of stacked rows, from where the first of their heads begins."""
    return i_row * x.row if GROUP == 1 else (i_row // GROUP) * x.row + (i_row % GROUP) * x.head


@triton.jit
def lane(m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Which elements of a tile exist: (rows, WIDTH), of columns FROM .. below D. m_row: of rows; None: all."""
    i_col = FROM + tl.arange(0, WIDTH)
    if FROM + WIDTH > D:
        return (i_col < D)[None, :] if m_row is None else m_row[:, None] & (i_col < D)[None, :]
    elif m_row is not None:  # Triton 3.6 cannot return None but by returning nothing
        return m_row[:, None]


@triton.jit
def load(at, offsets, x, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """A tile of x: rows at `offsets`, columns FROM .. FROM + WIDTH - 1; 0 where there is no such row or column."""
    p_x = at + offsets[:, None] + ((FROM + tl.arange(0, WIDTH)).to(offsets.dtype) * x.col)[None, :]
    m_x = lane(m_row, FROM, WIDTH, D)
    if m_x is None:
        return tl.load(p_x)
    else:
        return tl.load(p_x, mask=m_x, other=0.0)


@triton.jit
def load_slice(at, offsets, x, m_row, begin, WIDTH: tl.constexpr, D: tl.constexpr):
    """The same of columns begin .. begin + WIDTH - 1, where that is known only as it runs."""
    i_col = begin + tl.arange(0, WIDTH)
    p_x = at + offsets[:, None] + (i_col.to(offsets.dtype) * x.col)[None, :]
    if D % WIDTH:
        m_col = (i_col < D)[None, :]
        return tl.load(p_x, mask=m_col if m_row is None else m_row[:, None] & m_col, other=0.0)
    else:
        return tl.load(p_x) if m_row is None else tl.load(p_x, mask=m_row[:, None], other=0.0)


@triton.jit
def numbers_at(at, m_row, other):
    """A number per row; `other` where there is no such row."""
    if m_row is None:
        return tl.load(at)
    else:
        return tl.load(at, mask=m_row, other=other)


@triton.jit
def store(at, offsets, x, b_x, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    p_x = at + offsets[:, None] + ((FROM + tl.arange(0, WIDTH)).to(offsets.dtype) * x.col)[None, :]
    m_x = lane(m_row, FROM, WIDTH, D)
    if m_x is None:
        tl.store(p_x, b_x.to(x.at.dtype.element_ty))
    else:
        tl.store(p_x, b_x.to(x.at.dtype.element_ty), mask=m_x)


@triton.jit
def constant(x: tl.constexpr, SUMS: tl.constexpr):
    return tl.full((), x, SUMS)


@triton.jit
def number(x, SUMS: tl.constexpr):
    """A task.Number."""
    high = tl.full((), x.high, SUMS)
    return high + tl.full((), x.low, SUMS) if tl.float64 == SUMS else high


# Products ---------------------------------------------------------------------------------------------------------


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b, summed in acc's type. PRECISION: of float32 inputs."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # which the interpreter would multiply as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


# Scores -----------------------------------------------------------------------------------------------------------
# Tiles of scores lie either way: i_row, i_query and i_key are (rows, 1) and (1, keys), or (1, rows) and (keys, 1).


@triton.jit
def factor_left(scores, PLAIN: tl.constexpr, SUMS: tl.constexpr):
    """What finished scores are still to be multiplied by."""
    return number(scores.scale, SUMS) * constant(LOG2E, SUMS) if PLAIN else constant(1.0, SUMS)


@triton.jit
def finish(s, scores, batch, head, i_row, i_key, m_row, m_key, GROUP: tl.constexpr, PLAIN: tl.constexpr):
    """Scores from products, and the derivative of softcap tanh(x / softcap), which is s if there is no softcap.

    head: the key head. m_row, m_key: which rows and keys there are, shaped as i_row and i_key; None: all.
    """
    slope = s
    if not PLAIN:
        if scores.softcap is None:
            s = s * (number(scores.scale, s.dtype) * constant(LOG2E, s.dtype))
        else:
            bent = tanh(s * number(scores.bend, s.dtype))
            s = bent * (number(scores.softcap, s.dtype) * constant(LOG2E, s.dtype))
            slope = 1.0 - bent * bent
        if scores.bias is not None:
            bias = scores.bias
            p_bias = start(bias, batch, head * GROUP) + (row_offsets(bias, i_row, GROUP) + i_key * bias.col)
            if m_row is None and m_key is None:
                b_bias = tl.load(p_bias)
            elif m_row is None:
                b_bias = tl.load(p_bias, mask=m_key, other=0)
            elif m_key is None:
                b_bias = tl.load(p_bias, mask=m_row, other=0)
            else:
                b_bias = tl.load(p_bias, mask=m_row & m_key, other=0)
            if b_bias.dtype.is_int():  # boolean: True attends
                s = tl.where(b_bias != 0, s, float("-inf"))
            else:
                s += b_bias.to(s.dtype) * constant(LOG2E, s.dtype)
    return s, slope


@triton.jit
def tanh(x):
    """To a few units in the last place (of 1, in float64)."""
    size = tl.abs(x)
    power = tl.exp2(size * (-2.0 * constant(LOG2E, x.dtype)))
    bent = (1.0 - power) / (1.0 + power)
    if x.dtype == tl.float32:  # near 0 that would cancel: the series, up to the term below a unit in the last place
        y = size * size
        series = -17.0 / 315.0 + y * (62.0 / 2835.0 - y * (1382.0 / 155925.0))
        series = size + size * y * (-1.0 / 3.0 + y * (2.0 / 15.0 + y * series))
        bent = tl.where(size < 0.3, series, bent)
    return tl.where(x < 0, -bent, bent)


@triton.jit
def in_band(scores, i_query, i_key):
    """Whether the query attends the key by the band."""
    m = (i_query >= 0) & (i_key >= 0)
    if scores.first is not None:
        m &= i_key >= i_query + scores.first
    if scores.end is not None:
        m &= i_key < i_query + scores.end
    return m


@triton.jit
def key_range(scores, first_row, last_row, n_k, GROUP: tl.constexpr, COLS: tl.constexpr):
    """Of the band: keys low .. high - 1 are attended by some of the rows, and all those of the tiles between full_low
    and full_high by every row."""
    low, high, inner_low, inner_high = first_row * 0, n_k, first_row * 0, n_k
    if scores.first is not None:
        low = tl.maximum(0, first_row // GROUP + scores.first)
        inner_low = tl.maximum(0, last_row // GROUP + scores.first)
    if scores.end is not None:
        high = tl.minimum(n_k, last_row // GROUP + scores.end)
        inner_high = tl.minimum(n_k, first_row // GROUP + scores.end)
    return low, high, tl.cdiv(inner_low, COLS) * COLS, tl.maximum(inner_high, 0) // COLS * COLS


@triton.jit
def row_range(scores, first_key, last_key, n_q, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The same of rows: which attend some of the keys, and, in whole tiles, every key."""
    low, high, inner_low, inner_high = first_key * 0, n_q, first_key * 0, n_q
    if scores.end is not None:
        low = tl.maximum(0, first_key - scores.end + 1)
        inner_low = tl.maximum(0, last_key - scores.end + 1)
    if scores.first is not None:
        high = tl.minimum(n_q, last_key - scores.first + 1)
        inner_high = tl.minimum(n_q, first_key - scores.first + 1)
    full_high = tl.maximum(inner_high, 0) * GROUP // ROWS * ROWS
    return low * GROUP, high * GROUP, tl.cdiv(inner_low * GROUP, ROWS) * ROWS, full_high


@triton.jit
def first_top(scores, head, i_row, GROUP: tl.constexpr, SUMS: tl.constexpr):
    """The maximum and the sum that rows start from: those of their heads' sinks."""
    top = tl.full(i_row.shape, LOWEST, SUMS)
    total = tl.zeros(i_row.shape, SUMS)
    if scores.sinks is not None:
        b_sink = tl.load(scores.sinks + head * GROUP + i_row % GROUP).to(SUMS) * constant(LOG2E, SUMS)
        top = tl.maximum(b_sink, top)
        total = tl.where(b_sink == float("-inf"), total, 1.0)
    return top, total


@triton.jit
def row_numbers(batch, head, kv_heads, n_q, i_row, GROUP: tl.constexpr):
    """Where rows lie in arrays of one number per row: (batch, heads, n_q)."""
    return ((wide(batch) * kv_heads + head) * GROUP + i_row % GROUP) * n_q + i_row // GROUP


@triton.jit
def log_sum(at, m_row):
    """Rows' log-sum-exp in units of log 2; of rows without scores +inf, so that the power of what is less it is 0."""
    b_lse = numbers_at(at, m_row, float("inf"))
    return tl.where(b_lse == float("-inf"), float("inf"), b_lse * constant(LOG2E, b_lse.dtype))


@triton.jit
def power(s, top, PLAIN: tl.constexpr):
    """exp2(s - top), where s is above `top` by no more than rounding: 1 at most, unless scores are plain.

    A `top` so large that its rounding alone is some units is first made less by that, so that the score that
    outweighs all others has the weight 1, not 0, however products are fused and wherever `top` was kept.
    """
    if PLAIN:
        return tl.exp2(s - top)
    else:
        step = constant(2.0**-20 if s.dtype == tl.float32 else 2.0**-49, s.dtype)
        size = tl.abs(top)
        less = tl.where((size * step > 16.0) & (size < float("inf")), top - size * step, top)
        return tl.exp2(tl.where(s > less, 0.0, s - less))


@triton.jit
def kept(scores, numbers, j, COLS: tl.constexpr, SUMS: tl.constexpr):
    """(rows, COLS): 0 where the probability of keys j .. is dropped, else 1 / (1 - dropout). j: a multiple of 4.

    Philox 4x32-10 (Salmon et al., SC 2011) of (row's number, key's quarter), as in cpp/attention/scores.h: the same on all tiles.
    """
    i_quarter = (j // 4 + tl.arange(0, COLS // 4)).to(tl.uint32)[None, :]
    counter = numbers[:, None] + scores.first_row
    zero = i_quarter * 0
    low, high = counter.to(tl.uint32) + zero, (counter >> 32).to(tl.uint32) + zero
    i_quarter = i_quarter + low * 0
    a, b, c, d = tl.philox(tl.load(scores.seed), low, high, i_quarter, i_quarter * 0)
    least = tl.full((), scores.least, tl.int32).to(tl.uint32, bitcast=True)
    a, b, c, d = (a >= least).to(tl.int8), (b >= least).to(tl.int8), (c >= least).to(tl.int8), (d >= least).to(tl.int8)
    keeps = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (numbers.shape[0], COLS))
    return tl.where(keeps != 0, number(scores.kept, SUMS), 0.0)


# Listed tiles -----------------------------------------------------------------------------------------------------


@triton.jit
def block_of(lists, batch, head, block, blocks):
    """The block's number among those of all planes."""
    return tl.load(start(lists.planes, batch, head)) * blocks + block


@triton.jit
def listed(at, i, SIZE: tl.constexpr):
    """Whether bits i = 0 .. SIZE - 1 of the words at `at` are set: a scalar and (SIZE,), or (n, 1) and (1, SIZE)."""
    words = tl.load(at)
    for w in tl.static_range(1, SIZE // 64):
        words = tl.where(i < 64 * w, words, tl.load(at + w))
    return ((words >> (i % 64).to(tl.int64)) & 1) != 0
