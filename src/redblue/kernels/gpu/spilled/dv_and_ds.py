"""`hybrid`, backward: a block of keys of V and dV stays while P is turned into dS."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.band import attended_blocks
from redblue.kernels.gpu.products import both, lanes, read, rows_held, write
from redblue.kernels.gpu.scores import index, number, product, row_numbers, row_offsets, start
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.products import add_share, shares


@triton.jit(do_not_specialize=PLACE)
def turn(
    v,
    dout,
    gradient,
    sums,
    p,
    slope,
    ds,
    delta,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d_v,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS from P, and dV = P^T dO, of a block of keys, whose rows of V and dV stay."""
    blocks = tl.cdiv(n_k, COLS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_key = block * COLS + tl.arange(0, COLS)
    m_key = None if WHOLE_COLS else i_key < n_k
    begin, stop, partial, partial_stop, begun, ended, live = shares(
        scores, lists, batch, head, block, blocks, row, rows, n_q, n_k, GROUP, ROWS, COLS, DEPTH
    )
    if live:
        b_v = rows_held(start(v, batch, head), v, index(i_key, WIDE) * v.row, m_key, d_v, SLICES, WIDTH, WIDE)
        acc = ()
        for _ in tl.static_range(SLICES):
            acc = acc + (tl.zeros((COLS, WIDTH), SUMS),)  # noqa: RUF005 (Triton unpacks none)
        at_dout = start(dout, batch, head * GROUP)
        if lists is None:
            acc = _turn_tiles(
                begin, stop, "band", acc, b_v, at_dout, dout, p, slope, ds, delta, scores, lists, batch, head, kv_heads,
                local, row, rows, n_q, n_k, i_key, m_key, d_v,
                GROUP, SLICES, WIDTH, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
        else:
            PER: tl.constexpr = ROWS // DEPTH
            acc = _turn_tiles(
                begin * PER, stop * PER, "full", acc, b_v, at_dout, dout, p, slope, ds, delta, scores, lists, batch,
                head, kv_heads, local, row, rows, n_q, n_k, i_key, m_key, d_v,
                GROUP, SLICES, WIDTH, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
            acc = _turn_tiles(
                partial * PER, partial_stop * PER, "partial", acc, b_v, at_dout, dout, p, slope, ds, delta, scores,
                lists, batch, head, kv_heads, local, row, rows, n_q, n_k, i_key, m_key, d_v,
                GROUP, SLICES, WIDTH, ROWS, DEPTH, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
        for f in tl.static_range(SLICES):
            i_f = f * WIDTH + tl.arange(0, WIDTH)
            m_tile = lanes(m_key, i_f < d_v)
            add_share(acc[f], gradient, sums, scores, batch, head, i_key, i_f, m_tile, begun, ended, True, WIDE)


@triton.jit
def _turn_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    acc,
    b_v,
    at_dout,
    dout,
    p,
    slope,
    ds,
    delta,
    scores,
    lists,
    batch,
    head,
    kv_heads,
    local,
    row,
    rows,
    n_q,
    n_k,
    i_key,
    m_key,
    d_v,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS of slices of DEPTH rows, and acc + P^T dO. TILES: as of spilled._weigh_tiles."""
    PER: tl.constexpr = ROWS // DEPTH
    SUMS: tl.constexpr = delta.dtype.element_ty
    for t in tl.range(begin, stop, DEPTH if TILES == "band" else 1):
        i = t
        m_x = m_key
        if TILES == "full":
            i = tl.load(lists.full + t // PER) * ROWS + t % PER * DEPTH
        if TILES == "partial":
            i = tl.load(lists.partial + t // PER) * ROWS + t % PER * DEPTH
        if TILES == "band":
            m_x = both(m_key, attended_blocks(scores, i_key, i, tl.minimum(i + DEPTH, n_q * GROUP), n_k, DEPTH, GROUP))
        i_row = i + tl.arange(0, DEPTH)
        m_row = None if WHOLE_ROWS or TILES == "full" else i_row < row + rows
        m_tile = lanes(m_row, m_x)
        dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
        b_dout = rows_held(at_dout, dout, dout_offsets, m_row, d_v, SLICES, WIDTH, WIDE)
        b_delta = read(delta + row_numbers(batch, head, kv_heads, n_q, i_row, GROUP), m_row)
        b_p = read(line_at(p, local, i_row - row)[:, None] + i_key[None, :], m_tile)
        used = b_p
        if scores.seed is not None:  # what is dropped is negative
            used = tl.maximum(b_p.to(SUMS), 0.0).to(b_p.dtype)
        dp = tl.zeros((DEPTH, i_key.shape[0]), SUMS)
        added = ()
        for f in tl.static_range(SLICES):
            dp = product(b_dout[f], tl.trans(b_v[f]), dp, PRECISION)
            share = product(tl.trans(used), b_dout[f], acc[f], PRECISION)
            added = added + (share,)  # noqa: RUF005 (Triton unpacks none)
        acc = added
        b_ds = score_gradient(b_p.to(SUMS), dp, b_delta[:, None], scores)
        if slope is not None:
            b_ds *= read(line_at(slope, local, i_row - row)[:, None] + i_key[None, :], m_tile).to(SUMS)
        write(line_at(ds, local, i_row - row)[:, None] + i_key[None, :], b_ds, m_tile)
    return acc


@triton.jit
def score_gradient(b_p, dp, b_delta, scores):
    """dS before the derivative of a softcap; 0 where P is, whatever dP. Of what is dropped, P is negative."""
    if scores.seed is not None:
        dp = tl.where(b_p > 0, dp * number(scores.kept, dp.dtype), 0.0)
        b_p = tl.abs(b_p)
    return tl.where(b_p == 0, 0.0, b_p * (dp - b_delta))
