"""dQ = dS K, dK = dS^T Q and dV = P^T dO of a chunk of rows, from spilled P and dS.

dQ is complete; dK and dV are summed over chunks in the sums' type.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.band import attended_keys, attending_rows, first_from, keys_of, live_tiles, rows_of
from redblue.kernels.gpu.products import both, lanes, places, read, write
from redblue.kernels.gpu.scores import block_of, index, number, product, row_offsets, start
from redblue.kernels.gpu.spilled.chunks import PLACE, line_at


@triton.jit(do_not_specialize=PLACE)
def row_gradient(
    k,
    dq,
    ds,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    d,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of dQ = dS K."""
    blocks, times = tl.cdiv(rows, ROWS), tl.cdiv(d, FEATURES)
    block = tl.program_id(0) // times % blocks  # those that share rows of dS run at once
    local = tl.program_id(0) // times // blocks
    if scores.end is not None:  # the longest first
        block = blocks - 1 - block
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_local = block * ROWS + tl.arange(0, ROWS)
    i_row = row + i_local
    i_f = tl.program_id(0) % times * FEATURES + tl.arange(0, FEATURES)
    m_row = None if WHOLE_ROWS else i_local < rows
    m_f = None if WHOLE else i_f < d
    acc = tl.zeros((ROWS, FEATURES), SUMS)
    at_k = start(k, batch, head)
    if lists is None:
        low, high = keys_of(scores, row + block * ROWS, row + tl.minimum(block * ROWS + ROWS, rows), n_k, GROUP)
        acc = _row_tiles(
            low // DEPTH * DEPTH, high, "band", acc, at_k, k, ds, scores, lists, local, i_local, i_row // GROUP, i_f,
            m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
    else:
        PER: tl.constexpr = COLS // DEPTH
        at = block_of(lists, batch, head, (row // ROWS) + block, tl.cdiv(n_q * GROUP, ROWS))
        begin, stop = live_tiles(lists.full_starts + at, 0, 1)
        acc = _row_tiles(
            begin * PER, stop * PER, "full", acc, at_k, k, ds, scores, lists, local, i_local, i_row // GROUP, i_f,
            m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
        begin, stop = live_tiles(lists.partial_starts + at, 0, 1)
        acc = _row_tiles(
            begin * PER, stop * PER, "partial", acc, at_k, k, ds, scores, lists, local, i_local, i_row // GROUP, i_f,
            m_row, m_f, n_k, COLS, DEPTH, WHOLE_KEYS, WIDE, PRECISION
        )  # fmt: skip
    acc *= number(scores.scale, acc.dtype)
    dq_offsets = row_offsets(dq, index(i_row, WIDE), GROUP)
    write(places(start(dq, batch, head * GROUP), dq, dq_offsets, i_f, WIDE), acc, lanes(m_row, m_f))


@triton.jit
def _row_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    acc,
    at_k,
    k,
    ds,
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
    """acc + dS K over slices of DEPTH keys. TILES: as of spilled._weigh_tiles."""
    PER: tl.constexpr = COLS // DEPTH
    for t in tl.range(begin, stop, DEPTH if TILES == "band" else 1):
        j = t
        m_x = m_row
        if TILES == "full":
            j = tl.load(lists.full + t // PER) * COLS + t % PER * DEPTH
        if TILES == "partial":
            j = tl.load(lists.partial + t // PER) * COLS + t % PER * DEPTH
        if TILES == "band":
            m_x = both(m_row, attending_rows(scores, i_query, j, tl.minimum(j + DEPTH, n_k)))
        i_key = j + tl.arange(0, DEPTH)
        m_key = None if WHOLE_KEYS or TILES == "full" else i_key < n_k
        b_ds = read(line_at(ds, local, i_local)[:, None] + i_key[None, :], lanes(m_x, m_key))
        b_k = read(places(at_k, k, index(i_key, WIDE) * k.row, i_f, WIDE), lanes(m_key, m_f))
        acc = product(b_ds, b_k, acc, PRECISION)
    return acc


@triton.jit(do_not_specialize=PLACE)
def key_gradient(
    x,
    other,
    gradient,
    sums,
    scores,
    lists,
    stream,
    row,
    rows,
    n_q,
    n_k,
    kv_heads,
    features,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    OF_P: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WHOLE_KEYS: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of x^T other over a chunk's rows: of dK, or, where x is P, of dV; see add_share."""
    blocks, times = tl.cdiv(n_k, KEYS), tl.cdiv(features, FEATURES)
    block = tl.program_id(0) // times % blocks  # those that share columns of x run at once
    local = tl.program_id(0) // times // blocks
    batch, head = (stream + local) // kv_heads, (stream + local) % kv_heads
    i_key = block * KEYS + tl.arange(0, KEYS)
    i_f = tl.program_id(0) % times * FEATURES + tl.arange(0, FEATURES)
    m_key = None if WHOLE_KEYS else i_key < n_k
    m_f = None if WHOLE else i_f < features
    acc = tl.zeros((KEYS, FEATURES), SUMS)
    at_other = start(other, batch, head * GROUP)
    begin, stop, partial, partial_stop, begun, ended, live = shares(
        scores, lists, batch, head, block, blocks, row, rows, n_q, n_k, GROUP, ROWS, KEYS, DEPTH
    )
    if live:
        if lists is None:
            acc = _key_tiles(
                begin, stop, "band", acc, at_other, other, x, scores, lists, local, row, rows, n_q, i_key, i_f, m_key,
                m_f, GROUP, ROWS, DEPTH, OF_P, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
        else:
            PER: tl.constexpr = ROWS // DEPTH
            acc = _key_tiles(
                begin * PER, stop * PER, "full", acc, at_other, other, x, scores, lists, local, row, rows, n_q, i_key,
                i_f, m_key, m_f, GROUP, ROWS, DEPTH, OF_P, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
            acc = _key_tiles(
                partial * PER, partial_stop * PER, "partial", acc, at_other, other, x, scores, lists, local, row, rows,
                n_q, i_key, i_f, m_key, m_f, GROUP, ROWS, DEPTH, OF_P, WHOLE_ROWS, WIDE, PRECISION
            )  # fmt: skip
        add_share(acc, gradient, sums, scores, batch, head, i_key, i_f, lanes(m_key, m_f), begun, ended, OF_P, WIDE)


@triton.jit
def shares(
    scores,
    lists,
    batch,
    head,
    block,
    blocks,
    row,
    rows,
    n_q,
    n_k,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """What a block of keys is given by a chunk's rows: a range of rows, or two of entries of its lists.

    Then whether earlier rows began its sums, whether no later ones will add to them, and whether there is anything to
    do: the first chunk begins what no row adds to.
    """
    if lists is None:
        low, high = rows_of(scores, block * KEYS, tl.minimum(block * KEYS + KEYS, n_k), n_q * GROUP, GROUP)
        begin, stop = tl.maximum(low, row) // DEPTH * DEPTH, tl.minimum(high, row + rows)
        begun, ended = (low < row) & (low < high), high <= row + rows
        live = (tl.maximum(low, row) < stop) | ((low >= high) & (row == 0))
        return begin, stop, begin, stop, begun, ended | (low >= high), live
    else:
        at = block_of(lists, batch, head, block, blocks)
        full, full_end = tl.load(lists.full_starts + at), tl.load(lists.full_starts + at + 1)
        partial, partial_end = tl.load(lists.partial_starts + at), tl.load(lists.partial_starts + at + 1)
        first, last = row // ROWS, tl.cdiv(row + rows, ROWS)
        begin, stop = first_from(lists.full, full, full_end, first), first_from(lists.full, full, full_end, last)
        some = first_from(lists.partial, partial, partial_end, first)
        none = first_from(lists.partial, partial, partial_end, last)
        begun, ended = (begin > full) | (some > partial), (stop == full_end) & (none == partial_end)
        live = (begin < stop) | (some < none) | ((full == full_end) & (partial == partial_end) & (row == 0))
        return begin, stop, some, none, begun, ended, live


@triton.jit
def add_share(
    acc, gradient, sums, scores, batch, head, i_key, i_f, m_tile, begun, ended, OF_P: tl.constexpr, WIDE: tl.constexpr
):
    """Add a chunk's share to those of earlier chunks; where no later ones follow, write the gradient."""
    if sums is not None:
        p_sums = places(start(sums, batch, head), sums, index(i_key, WIDE) * sums.row, i_f, WIDE)
        if begun:
            acc += read(p_sums, m_tile)
        if not ended:
            write(p_sums, acc, m_tile)
    if ended:
        if OF_P:
            if scores.seed is not None:
                acc *= number(scores.kept, acc.dtype)
        else:
            acc *= number(scores.scale, acc.dtype)
        write(places(start(gradient, batch, head), gradient, index(i_key, WIDE) * gradient.row, i_f, WIDE), acc, m_tile)


@triton.jit
def _key_tiles(
    begin,
    stop,
    TILES: tl.constexpr,
    acc,
    at_other,
    other,
    x,
    scores,
    lists,
    local,
    row,
    rows,
    n_q,
    i_key,
    i_f,
    m_key,
    m_f,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    OF_P: tl.constexpr,
    WHOLE_ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """acc + x^T other over slices of DEPTH rows. TILES: as of spilled._weigh_tiles."""
    PER: tl.constexpr = ROWS // DEPTH
    for t in tl.range(begin, stop, DEPTH if TILES == "band" else 1):
        i = t
        m_x = m_key
        if TILES == "full":
            i = tl.load(lists.full + t // PER) * ROWS + t % PER * DEPTH
        if TILES == "partial":
            i = tl.load(lists.partial + t // PER) * ROWS + t % PER * DEPTH
        if TILES == "band":
            m_x = both(m_key, attended_keys(scores, i_key, i, tl.minimum(i + DEPTH, n_q * GROUP), GROUP))
        i_row = i + tl.arange(0, DEPTH)
        m_row = None if WHOLE_ROWS or TILES == "full" else i_row < row + rows
        b_x = read(line_at(x, local, i_row - row)[:, None] + i_key[None, :], lanes(m_row, m_x))
        if OF_P and scores.seed is not None:  # what is dropped is negative
            b_x = tl.maximum(b_x.to(acc.dtype), 0.0).to(b_x.dtype)
        other_offsets = row_offsets(other, index(i_row, WIDE), GROUP)
        b_other = read(places(at_other, other, other_offsets, i_f, WIDE), lanes(m_row, m_f))
        acc = product(tl.trans(b_x), b_other, acc, PRECISION)
    return acc
