"""The forward kernel for Hopper GPUs, in Gluon: one warp loads tiles, warpgroups multiply them and apply the softmax.

A block owns CONSUMERS * 64 rows. Its loader copies keys and values by TMA into two rings of STAGES tiles each. Each
consumer, a warpgroup of 64 rows, multiplies them: it issues the product for the scores of the next tile of keys and the
product P V of this tile, then computes the softmax of the next tile while the tensor cores work. With PING_PONG,
consumers take turns at issuing products, so that one computes its softmax while the other's products run.

Every barrier completes one phase per use of the tile that it guards. A wait for parity p returns once the phase of that
parity has completed; a barrier that was never used counts as having completed parity 1. So use number i of a ring
waits for parity (i // STAGES) & 1 of `filled` and the opposite parity of `free` (tests/support/gluon_model.py).
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # its older name
LOADER_REGISTERS = gl.constexpr(24)
LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
LOWEST = gl.constexpr(-3.0e38)  # the initial row maximum: finite, so that -inf - LOWEST is not NaN
EDGE = gl.constexpr(64)  # rows of a warpgroup


class Constants(NamedTuple):
    """The numbers and switches that a kernel is compiled for; hopper_forward explains them.

    It is constructed in the call of a helper. If it were in a variable, Triton would make run-time numbers of it.
    """

    FIRST: Any
    END: Any
    D_V: Any
    PACK: Any
    COLS: Any
    STAGES: Any
    PING_PONG: Any
    ORDERED: Any
    WHOLE_COLS: Any
    CONSUMERS: Any


class Call(NamedTuple):
    """The band and the sizes of a call, and the order of its blocks; hopper_forward explains them."""

    first: Any
    end: Any
    n_q: Any
    n_k: Any
    heads: Any
    batch_heads: Any
    group: Any
    blocks: Any
    section: Any


class Operands(NamedTuple):
    """One thing for queries, one for keys and one for values: TMA maps, tiles in shared memory, or barriers."""

    q: Any
    k: Any
    v: Any


class Shared(NamedTuple):
    """The tiles in shared memory, and the barriers that order the warps that use them."""

    tiles: Operands
    filled: Operands
    free: Operands
    turns: Any  # a consumer waits for its own before it issues products


class Results(NamedTuple):
    """The output, with its strides, and the log-sum-exp."""

    out: Any
    batch: Any
    head: Any
    row: Any
    lse: Any


class Band(NamedTuple):
    """The keys low .. high - 1 that each row attends; low None: from the first."""

    low: Any
    high: Any


@gluon.jit
def key_tiles(call, row, stop, c):
    """The tiles of COLS keys that rows row .. stop - 1 attend: their borders low, full_low, full_high, high.

    Every row attends all keys of tiles full_low .. full_high - 1. There is always a tile, though perhaps a masked one.
    """
    n_k = call.n_k
    low_key, high_key, full_low_key, full_high_key = 0, n_k, 0, n_k
    if c.FIRST:
        low_key = gl.maximum(0, row // c.PACK + call.first)
        full_low_key = gl.maximum(0, (stop - 1) // c.PACK + call.first)
    if c.END:
        high_key = gl.minimum(n_k, (stop - 1) // c.PACK + call.end)
        full_high_key = gl.maximum(0, gl.minimum(n_k, row // c.PACK + call.end))
    low = gl.minimum(low_key, n_k - 1) // c.COLS
    high = gl.maximum(low + 1, (gl.maximum(high_key, 0) + c.COLS - 1) // c.COLS)
    full_low = gl.minimum(high, (full_low_key + c.COLS - 1) // c.COLS)
    full_high = gl.maximum(full_low, gl.minimum(high, full_high_key // c.COLS))
    return low, full_low, full_high, high


@gluon.jit
def block_of(work, call, LAST_FIRST: gl.constexpr):
    """Return batch entry * heads + head, and the block of rows, of work item number `work`.

    Heads come in sections whose keys and values stay in the L2 cache. Within a section, the blocks that attend the most
    keys come first.
    """
    per_section = call.section * call.blocks
    here = work // per_section * call.section
    width = gl.minimum(call.section, call.batch_heads - here)
    within = work % per_section
    block = within // width
    if LAST_FIRST:
        block = call.blocks - 1 - block
    return here + within % width, block


@gluon.jit
def load_tiles(maps, shared, call, c):
    """The loader's loop over blocks: queries, then keys and values tile by tile, from the last tile to the first."""
    tiles, filled, free = shared.tiles, shared.filled, shared.free
    ROWS: gl.constexpr = c.CONSUMERS * EDGE
    uses, turn = 0, 0
    for work in range(gl.program_id(0), call.batch_heads * call.blocks, gl.num_programs(0)):
        at, block = block_of(work, call, c.END)
        batch, head = at // call.heads, at % call.heads
        key_head = head * c.PACK // call.group
        row = block * ROWS
        low, _, _, high = key_tiles(call, row, gl.minimum(row + ROWS, call.n_q * c.PACK), c)
        for i in gl.static_range(c.CONSUMERS):
            mbarrier.wait(free.q.index(i), (turn & 1) ^ 1)
            mbarrier.expect(filled.q.index(i), maps.q.block_type.nbytes)
            copy_tile(
                maps.q, [batch, (row + i * EDGE) // c.PACK, head * c.PACK, 0], filled.q.index(i), tiles.q.index(i)
            )
        for i in range(high - low + 1):
            if i < high - low:  # keys are loaded one tile ahead of values, in the order in which they are multiplied
                use = uses + i
                stage, parity = use % c.STAGES, (use // c.STAGES) & 1
                mbarrier.wait(free.k.index(stage), parity ^ 1)
                mbarrier.expect(filled.k.index(stage), maps.k.block_type.nbytes)
                key = (high - 1 - i) * c.COLS
                copy_tile(maps.k, [batch, key, key_head, 0], filled.k.index(stage), tiles.k.index(stage))
            if i > 0:
                use = uses + i - 1
                stage, parity = use % c.STAGES, (use // c.STAGES) & 1
                mbarrier.wait(free.v.index(stage), parity ^ 1)
                mbarrier.expect(filled.v.index(stage), maps.v.block_type.nbytes)
                key = (high - i) * c.COLS
                copy_tile(maps.v, [batch, key, key_head, 0], filled.v.index(stage), tiles.v.index(stage))
        uses += high - low
        turn += 1  # noqa: SIM113 (Gluon has no enumerate)


@gluon.jit
def softmax_tile(s, row_max, row_sum, scale, tile, band, COLS: gl.constexpr, MASKED: gl.constexpr):
    """Return unnormalised probabilities of a tile's scores, new row maxima and sums, and the factor of old results."""
    if MASKED:
        i_key = tile * COLS + gl.arange(0, COLS, gl.SliceLayout(0, s.type.layout))
        s = gl.where(i_key[None, :] < band.high[:, None], s, float("-inf"))
        if band.low is not None:
            s = gl.where(i_key[None, :] >= band.low[:, None], s, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
    p = gl.exp2(s * scale - new_max[:, None])
    shrink = gl.exp2(row_max - new_max)
    return p, new_max, row_sum * shrink + gl.sum(p, 1), shrink


@gluon.jit
def computed(row_sum):
    """Return the sums, and keep ptxas from moving their computation behind the next wait.

    Otherwise ptxas computes the probabilities after the next wait for products, while the tensor cores are idle. A
    conditional sleep that depends on the sums prevents this, because ptxas does not reorder sleeps and waits. No sum is
    below -1, so no thread ever sleeps.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.lt.f32 never, $1, 0fBF800000; @never nanosleep.u32 0; mov.f32 $0, $1; }",
        "=f,f",
        [row_sum],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def matrix(tile):
    """A tile (1, rows, 1, columns), or (1, queries, heads, columns), in shared memory as a matrix (rows, columns)."""
    return tile.reshape([tile.shape[1] * tile.shape[2], tile.shape[3]])


@gluon.jit
def add_tiles(begin, stop, uses, state, shared, scale, band, c, CONSUMER: gl.constexpr, MASKED: gl.constexpr):
    """Add tiles stop - 1 .. begin: multiply a tile's probabilities by its values while the next tile's are computed."""
    acc, p, row_max, row_sum = state
    tiles, filled, free = shared.tiles, shared.filled, shared.free
    COLS: gl.constexpr = c.COLS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    q = matrix(tiles.q.index(CONSUMER))
    for i in range(stop - begin):
        k_stage, k_parity = uses % c.STAGES, (uses // c.STAGES) & 1
        v_stage, v_parity = (uses - 1) % c.STAGES, ((uses - 1) // c.STAGES) & 1
        mbarrier.wait(filled.k.index(k_stage), k_parity)
        if c.PING_PONG:
            mbarrier.wait(shared.turns.index(CONSUMER), (uses & 1) ^ (0 if CONSUMER else 1))
        zeros = gl.zeros([EDGE, COLS], gl.float32, S_LAYOUT)
        s = warpgroup_mma(q, matrix(tiles.k.index(k_stage)).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(filled.v.index(v_stage), v_parity)
        acc = warpgroup_mma(p, matrix(tiles.v.index(v_stage)), acc, is_async=True)
        if c.PING_PONG:
            mbarrier.arrive(shared.turns.index((CONSUMER + 1) % c.CONSUMERS), count=1)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(free.k.index(k_stage), count=1)
        p32, row_max, row_sum, shrink = softmax_tile(s, row_max, row_sum, scale, stop - 1 - i, band, COLS, MASKED)
        if c.ORDERED:
            row_sum = computed(row_sum)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free.v.index(v_stage), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(p32.to(tiles.v.dtype), P_LAYOUT)
        uses += 1
    return uses, (acc, p, row_max, row_sum)


@gluon.jit
def consume_tiles(shared, results, scale, call, c, CONSUMER: gl.constexpr):
    """The loop of a consumer over blocks: its 64 rows of the output and of the log-sum-exp."""
    tiles, filled, free = shared.tiles, shared.filled, shared.free
    PACK: gl.constexpr = c.PACK
    COLS: gl.constexpr = c.COLS
    ROWS: gl.constexpr = c.CONSUMERS * EDGE
    V_WIDTH: gl.constexpr = tiles.v.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    MASKED: gl.constexpr = c.FIRST or c.END or not c.WHOLE_COLS
    uses, turn = 0, 0
    for work in range(gl.program_id(0), call.batch_heads * call.blocks, gl.num_programs(0)):
        at, block = block_of(work, call, c.END)
        batch, head = at // call.heads, at % call.heads
        row = block * ROWS
        low, full_low, full_high, high = key_tiles(call, row, gl.minimum(row + ROWS, call.n_q * PACK), c)
        i_row = row + CONSUMER * EDGE + gl.arange(0, EDGE, gl.SliceLayout(1, S_LAYOUT))
        row_high = call.n_k + i_row * 0
        row_low = None
        if c.END:
            row_high = gl.minimum(call.n_k, i_row // PACK + call.end)
        if c.FIRST:
            row_low = i_row // PACK + call.first
        band = Band(row_low, row_high)

        # The scores of the last tile overlap with no other work
        stage, parity = uses % c.STAGES, (uses // c.STAGES) & 1
        mbarrier.wait(filled.q.index(CONSUMER), turn & 1)
        mbarrier.wait(filled.k.index(stage), parity)
        if c.PING_PONG:
            mbarrier.wait(shared.turns.index(CONSUMER), (uses & 1) ^ (0 if CONSUMER else 1))
        zeros = gl.zeros([EDGE, COLS], gl.float32, S_LAYOUT)
        q, k = matrix(tiles.q.index(CONSUMER)), matrix(tiles.k.index(stage)).permute((1, 0))
        s = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        if c.PING_PONG:
            mbarrier.arrive(shared.turns.index((CONSUMER + 1) % c.CONSUMERS), count=1)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(free.k.index(stage), count=1)
        row_max = gl.full([EDGE], LOWEST, gl.float32, gl.SliceLayout(1, S_LAYOUT))
        row_sum = gl.zeros([EDGE], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        p32, row_max, row_sum, _ = softmax_tile(s, row_max, row_sum, scale, high - 1, band, COLS, MASKED)
        p = gl.convert_layout(p32.to(tiles.v.dtype), P_LAYOUT)
        acc = gl.zeros([EDGE, V_WIDTH], gl.float32, O_LAYOUT)
        uses += 1

        state = acc, p, row_max, row_sum
        rest = high - 1
        if c.END:
            begin = gl.minimum(rest, full_high)
            uses, state = add_tiles(begin, rest, uses, state, shared, scale, band, c, CONSUMER, True)
            rest = begin
        begin = gl.minimum(rest, full_low)
        uses, state = add_tiles(begin, rest, uses, state, shared, scale, band, c, CONSUMER, False)
        if c.FIRST:
            uses, state = add_tiles(low, begin, uses, state, shared, scale, band, c, CONSUMER, True)
        mbarrier.arrive(free.q.index(CONSUMER), count=1)

        # The output of the first tile
        acc, p, row_max, row_sum = state
        stage, parity = (uses - 1) % c.STAGES, ((uses - 1) // c.STAGES) & 1
        mbarrier.wait(filled.v.index(stage), parity)
        acc = warpgroup_mma(p, matrix(tiles.v.index(stage)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free.v.index(stage), count=1)
        turn += 1  # noqa: SIM113 (Gluon has no enumerate)

        attends = row_sum != 0  # or is NaN
        total = gl.where(attends, row_sum, 1.0)
        b_lse = gl.where(attends, row_max * LN2 + gl.log(total), float("-inf"))
        at_row = (batch.to(gl.int64) * call.heads * PACK + head * PACK + i_row % PACK) * call.n_q + i_row // PACK
        gl.store(results.lse + at_row, b_lse, mask=i_row < call.n_q * PACK)
        factor = gl.convert_layout(gl.where(attends, 1.0 / total, 0.0), gl.SliceLayout(1, O_LAYOUT))[:, None]
        acc = gl.where(factor != 0, acc * factor, 0.0)  # unattended keys in loaded tiles may be NaN
        o_row = row + CONSUMER * EDGE + gl.arange(0, EDGE, gl.SliceLayout(1, O_LAYOUT))
        i_col = gl.arange(0, V_WIDTH, gl.SliceLayout(0, O_LAYOUT))
        p_out = results.out + batch.to(gl.int64) * results.batch
        p_out += (head * PACK + o_row % PACK).to(gl.int64) * results.head
        p_out += (o_row // PACK).to(gl.int64) * results.row
        p_out = gl.multiple_of(p_out, 16)  # bytes; the plan guarantees this alignment
        m_out = (o_row < call.n_q * PACK)[:, None]
        if V_WIDTH > c.D_V:
            m_out = m_out & (i_col < c.D_V)[None, :]
        gl.store(p_out[:, None] + i_col[None, :], acc.to(results.out.dtype.element_ty), mask=m_out)


@gluon.jit
def specialize_warps(maps, shared, results, scale, call, c):
    """Run the consumers and the loader concurrently."""
    if c.CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume_tiles, (shared, results, scale, call, c, 0)),
                (consume_tiles, (shared, results, scale, call, c, 1)),
                (load_tiles, (maps, shared, call, c)),
            ],
            [4, 1],
            [240, LOADER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume_tiles, (shared, results, scale, call, c, 0)),
                (consume_tiles, (shared, results, scale, call, c, 1)),
                (consume_tiles, (shared, results, scale, call, c, 2)),
                (load_tiles, (maps, shared, call, c)),
            ],
            [4, 4, 1],
            [160, 160, LOADER_REGISTERS],
        )


@gluon.jit(do_not_specialize=["first", "end", "n_q", "n_k", "heads", "batch_heads", "group", "blocks", "section"])
def hopper_forward(
    q_map,  # TMA maps of (batch, rows, heads, features)
    k_map,
    v_map,
    out,  # features contiguous, other strides multiples of 16 bytes
    out_batch,
    out_head,
    out_row,
    lse,  # (batch, heads, n_q), contiguous
    scale,  # times log2(e)
    first,  # query i attends keys i + first .. i + end - 1, if FIRST and END
    end,
    n_q,
    n_k,
    heads,  # heads of each batch entry, divided by PACK
    batch_heads,  # heads of all batch entries, divided by PACK
    group,  # query heads that share a key head
    blocks,  # blocks of rows of a head
    section,  # heads in a section (block_of)
    FIRST: gl.constexpr,
    END: gl.constexpr,
    D_V: gl.constexpr,
    PACK: gl.constexpr,  # heads of a group stacked into the rows of a block
    COLS: gl.constexpr,
    STAGES: gl.constexpr,
    PING_PONG: gl.constexpr,
    ORDERED: gl.constexpr,
    WHOLE_COLS: gl.constexpr,
    CONSUMERS: gl.constexpr,  # 2 or 3
):
    """Output and log-sum-exp of blocks of rows, over all keys."""
    dtype: gl.constexpr = q_map.dtype
    q_tile = gl.allocate_shared_memory(dtype, [CONSUMERS] + q_map.block_shape, q_map.layout)  # noqa: RUF005
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES] + k_map.block_shape, k_map.layout)  # noqa: RUF005
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES] + v_map.block_shape, v_map.layout)  # noqa: RUF005
    LAYOUT: gl.constexpr = mbarrier.MBarrierLayout()
    q_filled = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], LAYOUT)
    q_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], LAYOUT)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], LAYOUT)
    k_filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    v_filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LAYOUT)
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(q_filled.index(i), count=1)
        mbarrier.init(q_free.index(i), count=1)
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_filled.index(i), count=1)
        mbarrier.init(k_free.index(i), count=CONSUMERS)
        mbarrier.init(v_filled.index(i), count=1)
        mbarrier.init(v_free.index(i), count=CONSUMERS)
    fence_async_shared()

    maps, tiles = Operands(q_map, k_map, v_map), Operands(q_tile, k_tiles, v_tiles)
    filled, free = Operands(q_filled, k_filled, v_filled), Operands(q_free, k_free, v_free)
    shared = Shared(tiles, filled, free, turns)
    results = Results(out, out_batch, out_head, out_row, lse)
    call = Call(first, end, n_q, n_k, heads, batch_heads, group, blocks, section)
    specialize_warps(
        maps, shared, results, scale, call,
        Constants(FIRST, END, D_V, PACK, COLS, STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS)
    )  # fmt: skip
