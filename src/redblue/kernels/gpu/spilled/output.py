"""The second phase of `hybrid` and `small_cache`, forward: O = P V, from a P that was spilled."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.band import attending_rows, keys_of, live_tiles
from redblue.kernels.gpu.products import both, lanes, places, read, write
from redblue.kernels.gpu.scores import (
    LOG2E,
    LOWEST,
    block_of,
    constant,
    index,
    number,
    power,
    product,
    row_numbers,
    row_offsets,
    start,
)
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at


@triton.jit(do_not_specialize=PLACE)
def weigh(
    v,
    out,
    p,
    top,
    lse,
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
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of O = P V, where P was spilled in tiles of COLS keys."""
    SUMS: tl.constexpr = lse.dtype.element_ty
    blocks, times = tl.cdiv(rows, ROWS), tl.cdiv(d_v, FEATURES)
    block = tl.program_id(0) // times % blocks  # those that share rows of P run at once
    local = tl.program_id(0) // times // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    i_f = tl.program_id(0) % times * FEATURES + tl.arange(0, FEATURES)
    m_row = None if WHOLE_ROWS else i_local < rows
    m_f = None if WHOLE else i_f < d_v

    # What a tile of P is multiplied by as it is read: its rows' exp2(maximum - log-sum-exp)
    b_lse = read(lse + row_numbers(batch, head, kv_heads, n_q, i_row, GROUP), m_row)
    b_lse = tl.maximum(b_lse * constant(LOG2E, SUMS), LOWEST)
    acc, factor = tl.zeros((ROWS, FEATURES), SUMS), tl.zeros((ROWS,), SUMS)
    at_v = start(v, batch, head)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        acc = _weigh_tiles(
            low // DEPTH * DEPTH, high, "band", acc, factor, b_lse, at_v, v, p, top, scores, lists, local, i_local,
            i_row // GROUP, i_f, m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
    else:
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, 0, 1)
        acc = _weigh_tiles(
            begin * (COLS // DEPTH), stop * (COLS // DEPTH), "full", acc, factor, b_lse, at_v, v, p, top, scores,
            lists, local, i_local, i_row // GROUP, i_f, m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, 0, 1)
        acc = _weigh_tiles(
            begin * (COLS // DEPTH), stop * (COLS // DEPTH), "partial", acc, factor, b_lse, at_v, v, p, top, scores,
            lists, local, i_local, i_row // GROUP, i_f, m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
    if scores.seed is not None:
        acc *= number(scores.kept, SUMS)
    out_offsets = row_offsets(out, index(i_row, WIDE), GROUP)
    write(places(start(out, batch, head * GROUP), out, out_offsets, i_f, WIDE), acc, lanes(m_row, m_f))


@triton.jit
def _weigh_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    acc,
    factor,
    b_lse,
    at_v,
    v,
    p,
    top,
    scores,
    lists,
    local,
    i_local,
    i_query,
    i_f,
    m_row,
    m_f,
    n_k,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """acc + P V over slices of DEPTH keys. TILES: as of _spill_tiles; of listed tiles begin and stop count slices."""
    PER: tl.constexpr = COLS // DEPTH
    p_rows = line_at(p, local, i_local)
    if begin < stop:  # or ptxas waits for each product, as in flash.py
        for t in tl.range(begin, stop, DEPTH if TILES == "band" else 1):
            j = t
            next_tile = (t % COLS == 0) | (t == begin)
            if TILES == "full":
                j = tl.load(lists.full + t // PER) * COLS + t % PER * DEPTH
                next_tile = t % PER == 0
            if TILES == "partial":
                j = tl.load(lists.partial + t // PER) * COLS + t % PER * DEPTH
                next_tile = t % PER == 0
            i_key = j + tl.arange(0, DEPTH)
            m_key = None if WHOLE_KEYS or TILES == "full" else i_key < n_k
            m_top, m_p = both(m_row, next_tile & (i_local >= 0)), m_row
            if TILES == "band":
                first = j // COLS * COLS
                m_top = both(m_top, attending_rows(scores, i_query, first, tl.minimum(first + COLS, n_k)))
                m_p = both(m_row, attending_rows(scores, i_query, j, tl.minimum(j + DEPTH, n_k)))
            b_top = tl.load(line_at(top, local, j // COLS) + i_local, mask=m_top, other=float("-inf"))
            factor = tl.where(next_tile, power(b_top, b_lse, False), factor)
            b_p = read(p_rows[:, None] + i_key[None, :], lanes(m_p, m_key))
            b_v = read(places(at_v, v, index(i_key, WIDE) * v.row, i_f, WIDE), lanes(m_key, m_f))
            acc = product((b_p * factor[:, None]).to(b_v.dtype), b_v, acc, PRECISION)
    return acc
