"""Output-stationary products, as in redblue.schedules: a tile of the result stays, slices of both sides stream by.

Neither registers nor shared memory depend on how many features or keys are summed over.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.scores import index, product


@triton.jit
def both(a, b):
    """Two masks as one; None: everything, which Triton 3.6 can return only by returning nothing."""
    if a is None and b is not None:
        return b
    elif a is not None and b is None:
        return a
    elif a is not None:
        return a & b


@triton.jit
def lanes(m_row, m_col):
    """The mask of a tile from those of its rows and columns; None: everything."""
    return both(None if m_row is None else m_row[:, None], None if m_col is None else m_col[None, :])


@triton.jit
def read(p_x, m_x):
    """What lies there; 0 where the mask says that nothing does."""
    if m_x is None:
        return tl.load(p_x)
    else:
        return tl.load(p_x, mask=m_x, other=0.0)


@triton.jit
def write(p_x, b_x, m_x):
    tl.store(p_x, b_x.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def places(at, x, offsets, i_col, WIDE: tl.constexpr):
    """Of a tile of x: rows at `offsets` from `at`, and these columns."""
    return at + offsets[:, None] + (index(i_col, WIDE) * x.col)[None, :]


@triton.jit
def rows_held(at, x, offsets, m_row, features, SLICES: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr):
    """Rows of x that stay: a tuple of SLICES slices of DEPTH features. None if SLICES is 0, for rows that stream."""
    b_held = ()
    for f in tl.static_range(SLICES):
        i_f = f * DEPTH + tl.arange(0, DEPTH)
        b_held = b_held + (read(places(at, x, offsets, i_f, WIDE), lanes(m_row, i_f < features)),)  # noqa: RUF005 (Triton unpacks none)
    return b_held


@triton.jit
def score_tile(
    b_held,
    at_left,
    left,
    left_offsets,
    m_left,
    at_right,
    right,
    right_offsets,
    m_right,
    features,
    s,
    SLICES: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """s + left right^T, by slices of DEPTH features; those of the left rows stream like the right ones or are held.

    WHOLE: whether DEPTH divides the features.
    """
    if SLICES:
        for f in tl.static_range(SLICES):
            i_f = f * DEPTH + tl.arange(0, DEPTH)
            m_f = None if WHOLE else i_f < features
            b_right = read(places(at_right, right, right_offsets, i_f, WIDE), lanes(m_right, m_f))
            s = product(b_held[f], tl.trans(b_right), s, PRECISION)
    else:
        for start in range(0, features, DEPTH):
            i_f = start + tl.arange(0, DEPTH)
            m_f = None if WHOLE else i_f < features
            b_left = read(places(at_left, left, left_offsets, i_f, WIDE), lanes(m_left, m_f))
            b_right = read(places(at_right, right, right_offsets, i_f, WIDE), lanes(m_right, m_f))
            s = product(b_left, tl.trans(b_right), s, PRECISION)
    return s
