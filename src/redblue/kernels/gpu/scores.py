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
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


# Places -----------------------------------------------------------------------------------------------------------


@triton.jit
def start(x, batch, head):
    """Where the rows of a batch entry's head begin. Offsets between streams may take 64 bits."""
    return x.at + batch.to(tl.int64) * x.batch + head.to(tl.int64) * x.head


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
    else:
        return None if m_row is None else m_row[:, None]


@triton.jit
def load(at, offsets, x, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """A tile of x: rows at `offsets`, columns FROM .. FROM + WIDTH - 1; 0 where there is no such row or column."""
    p_x = at + offsets[:, None] + ((FROM + tl.arange(0, WIDTH)) * x.col)[None, :]
    m_x = lane(m_row, FROM, WIDTH, D)
    if m_x is None:
        return tl.load(p_x)
    else:
        return tl.load(p_x, mask=m_x, other=0.0)


@triton.jit
def store(at, offsets, x, b_x, m_row, FROM: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    p_x = at + offsets[:, None] + ((FROM + tl.arange(0, WIDTH)) * x.col)[None, :]
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
    return high if x.low is None else high + tl.full((), x.low, SUMS)


# Products ---------------------------------------------------------------------------------------------------------


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b, summed in acc's type. PRECISION: of float32 inputs."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # which the interpreter would multiply as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


# Scores -----------------------------------------------------------------------------------------------------------


@triton.jit
def factor_left(scores, PLAIN: tl.constexpr, SUMS: tl.constexpr):
    """What finished scores are still to be multiplied by."""
    return number(scores.scale, SUMS) * constant(LOG2E, SUMS) if PLAIN else constant(1.0, SUMS)


@triton.jit
def finish(s, scores, PLAIN: tl.constexpr):
    """Scores from products."""
    if not PLAIN:
        s *= number(scores.scale, s.dtype) * constant(LOG2E, s.dtype)
    return s


@triton.jit
def in_band(scores, i_query, i_key):
    """(rows, keys): whether the query attends the key by the band."""
    m = i_key[None, :] >= 0
    if scores.first is not None:
        m &= i_key[None, :] >= (i_query + scores.first)[:, None]
    if scores.end is not None:
        m &= i_key[None, :] < (i_query + scores.end)[:, None]
    return m
