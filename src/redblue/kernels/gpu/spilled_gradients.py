"""What `hybrid` and `small_cache`, backward, make of spilled P and dS: dQ = dS K, dK = dS^T Q, dV = P^T dO.

dQ of a chunk of rows is complete; dK and dV are summed over chunks in the sums' type. In hybrid, V and dV of a block of
keys stay while P is turned into dS.
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from redblue.integers import ceil_div
from redblue.kernels.gpu.band import (
    attended_blocks,
    attended_keys,
    attending_rows,
    first_from,
    keys_of,
    live_tiles,
    rows_of,
)
from redblue.kernels.gpu.chunks import PLACE, Chunk, Spilled, line_at, whole
from redblue.kernels.gpu.plan import Launch
from redblue.kernels.gpu.products import both, lanes, places, read, rows_held, write
from redblue.kernels.gpu.scores import block_of, index, number, product, row_numbers, row_offsets, start
from redblue.kernels.gpu.task import Array, Run, Task, array


def slice_width(features: int) -> int:
    """The widest slice of features, of 64 at most, that pads them by no more than a quarter; 16 if none does."""
    return next((width for width in (64, 32) if 4 * (-features % width) <= features), 16)


@dataclass(frozen=True)
class Gradients:
    """The launches for each chunk. common: arguments of all kernels; spilled: p, ds and, with a softcap, slope."""

    task: Task
    launch: Launch
    common: dict[str, Any]
    spilled: dict[str, Spilled]
    sums: dict[str, Array | None]  # see sums_of

    def dq(self, chunk: Chunk) -> Run:
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        arguments = self.common | chunk.place | {
            "k": array(task.k),
            "dq": array(task.dq),
            "ds": self.spilled["ds"],
            "lists": task.lists(t.rows, t.cols, "rows"),
            "d": sizes.d,
            "ROWS": t.dq_rows,
            "FEATURES": t.dq_cols,
            "DEPTH": t.depth,
            "WHOLE_ROWS": chunk.rows % t.dq_rows == 0,
            "WHOLE_KEYS": whole(task, sizes.n_k, t.cols, t.depth),
            "WHOLE": sizes.d % t.dq_cols == 0,
        }  # fmt: skip
        tiles = ceil_div(chunk.rows, t.dq_rows) * ceil_div(sizes.d, t.dq_cols)
        return Run(row_gradient, (tiles * chunk.streams,), arguments, self.launch.warps, self.launch.stages)

    def dk(self, chunk: Chunk) -> Run:
        t = self.launch.tiles
        return self._by_key(chunk, "dk", "ds", "q", (t.dk_rows, t.dk_cols))

    def dv(self, chunk: Chunk) -> Run:
        t = self.launch.tiles
        return self._by_key(chunk, "dv", "p", "dout", (t.dv_rows, t.dv_cols))

    def _by_key(self, chunk: Chunk, result: str, x: str, other: str, tile: tuple[int, int]) -> Run:
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        gradient, (keys, features) = getattr(task, result), tile
        length = gradient.shape[-1]
        arguments = self.common | chunk.place | {
            "x": self.spilled[x],
            "other": array(getattr(task, other)),
            "gradient": array(gradient),
            "sums": self.sums[result],
            "lists": task.lists(t.rows, t.cols, "cols"),
            "features": length,
            "KEYS": keys,
            "FEATURES": features,
            "DEPTH": t.depth,
            "OF_P": x == "p",
            "WHOLE_ROWS": whole(task, chunk.rows, t.rows, t.depth),
            "WHOLE_KEYS": sizes.n_k % keys == 0,
            "WHOLE": length % features == 0,
        }  # fmt: skip
        del arguments["COLS"]
        tiles = ceil_div(sizes.n_k, keys) * ceil_div(length, features)
        return Run(key_gradient, (tiles * chunk.streams,), arguments, self.launch.warps, self.launch.stages)

    def turn(self, chunk: Chunk) -> Run:
        """Hybrid's: P into dS, and dV."""
        task, t, sizes = self.task, self.launch.tiles, self.task.sizes
        width = slice_width(sizes.d_v)
        arguments = {"slope": None} | self.common | chunk.place | self.spilled | {
            "v": array(task.v),
            "dout": array(task.dout),
            "gradient": array(task.dv),
            "sums": self.sums["dv"],
            "delta": task.delta,
            "lists": task.lists(t.rows, t.cols, "cols"),
            "d_v": sizes.d_v,
            "DEPTH": t.depth,
            "WIDTH": width,
            "SLICES": ceil_div(sizes.d_v, width),
            "WHOLE_ROWS": whole(task, chunk.rows, t.rows, t.depth),
            "WHOLE_COLS": sizes.n_k % t.cols == 0,
        }  # fmt: skip
        blocks = ceil_div(sizes.n_k, t.cols) * chunk.streams
        return Run(turn, (blocks,), arguments, self.launch.warps, self.launch.stages)


def sums_of(task: Task, launch: Launch, gradient: Any) -> Array | None:
    """Where the gradient of one stream's keys is summed over chunks; None if one chunk holds all rows."""
    if launch.chunk >= task.rows:
        return None
    if gradient.dtype == task.lse.dtype:
        return array(gradient)
    n_k, features = gradient.shape[-2:]
    return Array(gradient.new_empty((n_k, features), dtype=task.lse.dtype), 0, 0, features, 1)


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
            b_x = tl.maximum(b_x, 0.0)
        other_offsets = row_offsets(other, index(i_row, WIDE), GROUP)
        b_other = read(places(at_other, other, other_offsets, i_f, WIDE), lanes(m_row, m_f))
        acc = product(tl.trans(b_x), b_other, acc, PRECISION)
    return acc


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
            used = tl.maximum(b_p, 0.0)
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
