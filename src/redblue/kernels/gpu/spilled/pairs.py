"""What writes P, and then dS, of a chunk of rows, backward: in `hybrid` P alone, while its queries stay."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.band import attending, keys_of, live_tiles
from redblue.kernels.gpu.products import lanes, read, rows_held, score_tile, write
from redblue.kernels.gpu.scores import (
    block_of,
    factor_left,
    finish,
    index,
    kept,
    log_sum,
    power,
    row_numbers,
    row_offsets,
    start,
)
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at
from redblue.kernels.gpu.spilled.dv_and_ds import score_gradient


@triton.jit(do_not_specialize=PLACE)
def spill_p(
    q,
    k,
    p,
    slope,
    lse,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d,
    span,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """P of a block of rows and a span of keys, in tiles of KEYS keys; listed ones of COLS are covered whole.

    slope: where the derivative of softcap tanh(x / softcap) goes, if there is a softcap.
    """
    blocks = tl.cdiv(rows, ROWS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    m_row = None if WHOLE_ROWS else i_local < rows
    numbers = row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    at_q, at_k = start(q, batch, head * GROUP), start(k, batch, head)
    q_offsets = row_offsets(q, index(i_row, WIDE), GROUP)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin = tl.maximum(low, tl.program_id(1) * span) // KEYS * KEYS
        stop = tl.minimum(high, tl.program_id(1) * span + span)
        m_held = tl.where((begin < stop) | (tl.num_programs(1) == 1), i_local, rows) < rows
        b_q = rows_held(at_q, q, q_offsets, m_held, d, SLICES, DEPTH, WIDE)
        b_lse = log_sum(lse + numbers, m_held)
        _p_tiles(
            begin, stop, "band", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists, batch, head,
            local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
    else:
        PER: tl.constexpr = COLS // KEYS
        b_q = rows_held(at_q, q, q_offsets, m_row, d, SLICES, DEPTH, WIDE)
        b_lse = log_sum(lse + numbers, m_row)
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, tl.program_id(1), tl.num_programs(1))
        _p_tiles(
            begin * PER, stop * PER, "full", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists, batch,
            head, local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, tl.program_id(1), tl.num_programs(1))
        _p_tiles(
            begin * PER, stop * PER, "partial", b_lse, b_q, at_q, q_offsets, at_k, q, k, p, slope, scores, lists,
            batch, head, local, i_local, i_row, m_row, numbers, n_k, d,
            GROUP, SLICES, COLS, KEYS, DEPTH, PLAIN, WHOLE_KEYS, WHOLE, WIDE, PRECISION
        )  # fmt: skip


@triton.jit
def _p_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    b_lse,
    b_q,
    at_q,
    q_offsets,
    at_k,
    q,
    k,
    p,
    slope,
    scores,
    lists,
    batch,
    head,
    local,
    i_local,
    i_row,
    m_row,
    numbers,
    n_k,
    d,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    COLS: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PLAIN: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """TILES: "band": those from key `begin` below `stop`; "full" and "partial": entries of lists, in pieces of KEYS."""
    ROWS: tl.constexpr = i_row.shape[0]
    SUMS: tl.constexpr = b_lse.dtype
    PER: tl.constexpr = COLS // KEYS
    left = factor_left(scores, PLAIN, SUMS)
    p_rows = line_at(p, local, i_local)
    for t in tl.range(begin, stop, KEYS if TILES == "band" else 1, flatten=SLICES == 0):
        j = t
        if TILES == "full":
            j = tl.load(lists.full + t // PER) * COLS + t % PER * KEYS
        if TILES == "partial":
            j = tl.load(lists.partial + t // PER) * COLS + t % PER * KEYS
        i_key = j + tl.arange(0, KEYS)
        m_key = None if WHOLE_KEYS or TILES == "full" else i_key < n_k
        s = score_tile(
            b_q, at_q, q, q_offsets, m_row, at_k, k, index(i_key, WIDE) * k.row, m_key, d,
            tl.zeros((ROWS, KEYS), SUMS), SLICES, DEPTH, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        s, bent = finish(
            s, scores, batch, head, index(i_row, WIDE)[:, None], index(i_key, WIDE)[None, :],
            None if m_row is None else m_row[:, None], None if m_key is None else m_key[None, :], GROUP, PLAIN
        )  # fmt: skip
        entry = t // PER if TILES == "partial" else t
        m_pair = attending(scores, lists, entry, TILES, i_row, i_key, m_key, ROWS, COLS, GROUP)
        s = power(s * left, b_lse[:, None], PLAIN)
        if m_pair is not None:
            s = tl.where(m_pair, s, 0.0)
        if scores.seed is not None:
            s = tl.where(kept(scores, numbers, j, KEYS, SUMS) != 0, s, -s)
        m_tile = lanes(m_row, m_key)
        write(p_rows[:, None] + i_key[None, :], s, m_tile)
        if slope is not None:
            write(line_at(slope, local, i_local)[:, None] + i_key[None, :], bent, m_tile)


@triton.jit(do_not_specialize=PLACE)
def spill_ds(
    v,
    dout,
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
    span,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS of a block of rows and a span of keys."""
    blocks = tl.cdiv(rows, ROWS)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0) // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    m_row = None if WHOLE_ROWS else i_local < rows
    at_dout, at_v = start(dout, batch, head * GROUP), start(v, batch, head)
    dout_offsets = row_offsets(dout, index(i_row, WIDE), GROUP)
    p_delta = delta + row_numbers(batch, head, kv_heads, n_q, i_row, GROUP)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        begin = tl.maximum(low, tl.program_id(1) * span) // COLS * COLS
        stop = tl.minimum(high, tl.program_id(1) * span + span)
        b_delta = read(p_delta, tl.where((begin < stop) | (tl.num_programs(1) == 1), i_local, rows) < rows)
        _ds_tiles(
            begin, stop, "band", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
    else:
        b_delta = read(p_delta, m_row)
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, tl.program_id(1), tl.num_programs(1))
        _ds_tiles(
            begin, stop, "full", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, tl.program_id(1), tl.num_programs(1))
        _ds_tiles(
            begin, stop, "partial", b_delta, at_dout, dout_offsets, at_v, dout, v, p, slope, ds, scores, lists, local,
            i_local, m_row, n_k, d_v, COLS, DEPTH, WHOLE_COLS, WHOLE, WIDE, PRECISION
        )  # fmt: skip


@triton.jit
def _ds_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    b_delta,
    at_dout,
    dout_offsets,
    at_v,
    dout,
    v,
    p,
    slope,
    ds,
    scores,
    lists,
    local,
    i_local,
    m_row,
    n_k,
    d_v,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_COLS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """TILES: as of _p_tiles."""
    ROWS: tl.constexpr = b_delta.shape[0]
    for t in tl.range(begin, stop, COLS if TILES == "band" else 1, flatten=True):
        j = t
        if TILES == "full":
            j = tl.load(lists.full + t) * COLS
        if TILES == "partial":
            j = tl.load(lists.partial + t) * COLS
        i_key = j + tl.arange(0, COLS)
        m_key = None if WHOLE_COLS or TILES == "full" else i_key < n_k
        m_tile = lanes(m_row, m_key)
        dp = score_tile(
            (), at_dout, dout, dout_offsets, m_row, at_v, v, index(i_key, WIDE) * v.row, m_key, d_v,
            tl.zeros((ROWS, COLS), b_delta.dtype), 0, DEPTH, WHOLE, WIDE, PRECISION
        )  # fmt: skip
        b_p = read(line_at(p, local, i_local)[:, None] + i_key[None, :], m_tile).to(dp.dtype)
        b_ds = score_gradient(b_p, dp, b_delta[:, None], scores)
        if slope is not None:
            b_ds *= read(line_at(slope, local, i_local)[:, None] + i_key[None, :], m_tile).to(dp.dtype)
        write(line_at(ds, local, i_local)[:, None] + i_key[None, :], b_ds, m_tile)
