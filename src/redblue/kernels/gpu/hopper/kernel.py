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


@gluon.jit
def key_tiles(
    first, end, row, stop, n_k, FIRST: gl.constexpr, END: gl.constexpr, PACK: gl.constexpr, COLS: gl.constexpr
):  # fmt: skip
    """The tiles of COLS keys that rows row .. stop - 1 attend: their borders low, full_low, full_high, high.

    Every row attends all keys of tiles full_low .. full_high - 1. There is always a tile, though perhaps a masked one.
    """
    low_key, high_key, full_low_key, full_high_key = 0, n_k, 0, n_k
    if FIRST:
        low_key = gl.maximum(0, row // PACK + first)
        full_low_key = gl.maximum(0, (stop - 1) // PACK + first)
    if END:
        high_key = gl.minimum(n_k, (stop - 1) // PACK + end)
        full_high_key = gl.maximum(0, gl.minimum(n_k, row // PACK + end))
    low = gl.minimum(low_key, n_k - 1) // COLS
    high = gl.maximum(low + 1, (gl.maximum(high_key, 0) + COLS - 1) // COLS)
    full_low = gl.minimum(high, (full_low_key + COLS - 1) // COLS)
    full_high = gl.maximum(full_low, gl.minimum(high, full_high_key // COLS))
    return low, full_low, full_high, high


@gluon.jit
def block_of(work, blocks, heads, section, LAST_FIRST: gl.constexpr):
    """Return batch entry * heads + head, and the block of rows, of work item number `work`.

    Heads come in sections whose keys and values stay in the L2 cache. Within a section, the blocks that attend the most
    keys come first.
    """
    per_section = section * blocks
    here = work // per_section * section
    width = gl.minimum(section, heads - here)
    within = work % per_section
    block = within // width
    if LAST_FIRST:
        block = blocks - 1 - block
    return here + within % width, block


@gluon.jit
def load_tiles(
    maps, tiles, filled, free, sizes, group, FIRST: gl.constexpr, END: gl.constexpr, PACK: gl.constexpr,
    COLS: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr
):  # fmt: skip
    """The loader's loop over blocks: queries, then keys and values tile by tile, from the last tile to the first."""
    q_map, k_map, v_map = maps
    q_tile, k_tiles, v_tiles = tiles
    q_filled, k_filled, v_filled = filled
    q_free, k_free, v_free = free
    first, end, n_q, n_k, heads, batch_heads, blocks, section = sizes
    ROWS: gl.constexpr = CONSUMERS * EDGE
    uses, turn = 0, 0
    for work in range(gl.program_id(0), batch_heads * blocks, gl.num_programs(0)):
        at, block = block_of(work, blocks, batch_heads, section, END)
        batch, head = at // heads, at % heads
        key_head = head * PACK // group
        row = block * ROWS
        low, _, _, high = key_tiles(first, end, row, gl.minimum(row + ROWS, n_q * PACK), n_k, FIRST, END, PACK, COLS)
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_free.index(c), (turn & 1) ^ 1)
            mbarrier.expect(q_filled.index(c), q_map.block_type.nbytes)
            copy_tile(q_map, [batch, (row + c * EDGE) // PACK, head * PACK, 0], q_filled.index(c), q_tile.index(c))
        for i in range(high - low + 1):
            if i < high - low:  # keys are loaded one tile ahead of values, in the order in which they are multiplied
                use = uses + i
                stage, parity = use % STAGES, (use // STAGES) & 1
                mbarrier.wait(k_free.index(stage), parity ^ 1)
                mbarrier.expect(k_filled.index(stage), k_map.block_type.nbytes)
                copy_tile(
                    k_map, [batch, (high - 1 - i) * COLS, key_head, 0], k_filled.index(stage), k_tiles.index(stage)
                )
            if i > 0:
                use = uses + i - 1
                stage, parity = use % STAGES, (use // STAGES) & 1
                mbarrier.wait(v_free.index(stage), parity ^ 1)
                mbarrier.expect(v_filled.index(stage), v_map.block_type.nbytes)
                copy_tile(v_map, [batch, (high - i) * COLS, key_head, 0], v_filled.index(stage), v_tiles.index(stage))
        uses += high - low
        turn += 1  # noqa: SIM113 (Gluon has no enumerate)


@gluon.jit
def softmax_tile(s, row_max, row_sum, scale, tile, row_low, row_high, COLS: gl.constexpr, MASKED: gl.constexpr):
    """Return unnormalised probabilities of a tile's scores, new row maxima and sums, and the factor of old results."""
    if MASKED:
        i_key = tile * COLS + gl.arange(0, COLS, gl.SliceLayout(0, s.type.layout))
        s = gl.where(i_key[None, :] < row_high[:, None], s, float("-inf"))
        if row_low is not None:
            s = gl.where(i_key[None, :] >= row_low[:, None], s, float("-inf"))
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
def add_tiles(
    begin, stop, uses, state, q_tile, k_tiles, v_tiles, k_filled, k_free, v_filled, v_free, turns,
    scale, row_low, row_high,
    COLS: gl.constexpr, STAGES: gl.constexpr, PING_PONG: gl.constexpr, ORDERED: gl.constexpr, CONSUMERS: gl.constexpr,
    C: gl.constexpr, MASKED: gl.constexpr
):  # fmt: skip
    """Add tiles stop - 1 .. begin: multiply a tile's probabilities by its values while the next tile's are computed."""
    acc, p, row_max, row_sum = state
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    for i in range(stop - begin):
        k_stage, k_parity = uses % STAGES, (uses // STAGES) & 1
        v_stage, v_parity = (uses - 1) % STAGES, ((uses - 1) // STAGES) & 1
        mbarrier.wait(k_filled.index(k_stage), k_parity)
        if PING_PONG:
            mbarrier.wait(turns.index(C), (uses & 1) ^ (0 if C else 1))
        zeros = gl.zeros([EDGE, COLS], gl.float32, S_LAYOUT)
        s = warpgroup_mma(
            matrix(q_tile), matrix(k_tiles.index(k_stage)).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        mbarrier.wait(v_filled.index(v_stage), v_parity)
        acc = warpgroup_mma(p, matrix(v_tiles.index(v_stage)), acc, is_async=True)
        if PING_PONG:
            mbarrier.arrive(turns.index((C + 1) % CONSUMERS), count=1)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(k_free.index(k_stage), count=1)
        p32, row_max, row_sum, shrink = softmax_tile(
            s, row_max, row_sum, scale, stop - 1 - i, row_low, row_high, COLS, MASKED
        )
        if ORDERED:
            row_sum = computed(row_sum)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(v_stage), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(p32.to(v_tiles.dtype), P_LAYOUT)
        uses += 1
    return uses, (acc, p, row_max, row_sum)


@gluon.jit
def consume_tiles(
    tiles, filled, free, turns, results, scale, sizes, FIRST: gl.constexpr, END: gl.constexpr, D_V: gl.constexpr,
    PACK: gl.constexpr, COLS: gl.constexpr, STAGES: gl.constexpr, PING_PONG: gl.constexpr, ORDERED: gl.constexpr,
    WHOLE_COLS: gl.constexpr, CONSUMERS: gl.constexpr, C: gl.constexpr
):  # fmt: skip
    """The loop of consumer C over blocks: its 64 rows of the output and of the log-sum-exp."""
    q_tile, k_tiles, v_tiles = tiles
    q_filled, k_filled, v_filled = filled
    q_free, k_free, v_free = free
    out, out_batch, out_head, out_row, lse = results
    first, end, n_q, n_k, heads, batch_heads, blocks, section = sizes
    ROWS: gl.constexpr = CONSUMERS * EDGE
    V_WIDTH: gl.constexpr = v_tiles.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    MASKED: gl.constexpr = FIRST or END or not WHOLE_COLS
    uses, turn = 0, 0
    for work in range(gl.program_id(0), batch_heads * blocks, gl.num_programs(0)):
        at, block = block_of(work, blocks, batch_heads, section, END)
        batch, head = at // heads, at % heads
        row = block * ROWS
        low, full_low, full_high, high = key_tiles(
            first, end, row, gl.minimum(row + ROWS, n_q * PACK), n_k, FIRST, END, PACK, COLS
        )
        i_row = row + C * EDGE + gl.arange(0, EDGE, gl.SliceLayout(1, S_LAYOUT))
        row_high = n_k + i_row * 0
        row_low = None
        if END:
            row_high = gl.minimum(n_k, i_row // PACK + end)
        if FIRST:
            row_low = i_row // PACK + first

        # The scores of the last tile overlap with no other work
        my_q = q_tile.index(C)
        stage, parity = uses % STAGES, (uses // STAGES) & 1
        mbarrier.wait(q_filled.index(C), turn & 1)
        mbarrier.wait(k_filled.index(stage), parity)
        if PING_PONG:
            mbarrier.wait(turns.index(C), (uses & 1) ^ (0 if C else 1))
        zeros = gl.zeros([EDGE, COLS], gl.float32, S_LAYOUT)
        s = warpgroup_mma(
            matrix(my_q), matrix(k_tiles.index(stage)).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        if PING_PONG:
            mbarrier.arrive(turns.index((C + 1) % CONSUMERS), count=1)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_free.index(stage), count=1)
        row_max = gl.full([EDGE], LOWEST, gl.float32, gl.SliceLayout(1, S_LAYOUT))
        row_sum = gl.zeros([EDGE], gl.float32, gl.SliceLayout(1, S_LAYOUT))
        p32, row_max, row_sum, _ = softmax_tile(s, row_max, row_sum, scale, high - 1, row_low, row_high, COLS, MASKED)
        p = gl.convert_layout(p32.to(v_tiles.dtype), P_LAYOUT)
        acc = gl.zeros([EDGE, V_WIDTH], gl.float32, O_LAYOUT)
        uses += 1

        state = acc, p, row_max, row_sum
        rest = high - 1
        if END:
            begin = gl.minimum(rest, full_high)
            uses, state = add_tiles(
                begin, rest, uses, state, my_q, k_tiles, v_tiles, k_filled, k_free, v_filled, v_free, turns,
                scale, row_low, row_high, COLS, STAGES, PING_PONG, ORDERED, CONSUMERS, C, True
            )  # fmt: skip
            rest = begin
        begin = gl.minimum(rest, full_low)
        uses, state = add_tiles(
            begin, rest, uses, state, my_q, k_tiles, v_tiles, k_filled, k_free, v_filled, v_free, turns,
            scale, row_low, row_high, COLS, STAGES, PING_PONG, ORDERED, CONSUMERS, C, False
        )  # fmt: skip
        if FIRST:
            uses, state = add_tiles(
                low, begin, uses, state, my_q, k_tiles, v_tiles, k_filled, k_free, v_filled, v_free, turns,
                scale, row_low, row_high, COLS, STAGES, PING_PONG, ORDERED, CONSUMERS, C, True
            )  # fmt: skip
        mbarrier.arrive(q_free.index(C), count=1)

        # The output of the first tile
        acc, p, row_max, row_sum = state
        stage, parity = (uses - 1) % STAGES, ((uses - 1) // STAGES) & 1
        mbarrier.wait(v_filled.index(stage), parity)
        acc = warpgroup_mma(p, matrix(v_tiles.index(stage)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(stage), count=1)
        turn += 1  # noqa: SIM113 (Gluon has no enumerate)

        attends = row_sum != 0  # or is NaN
        total = gl.where(attends, row_sum, 1.0)
        b_lse = gl.where(attends, row_max * LN2 + gl.log(total), float("-inf"))
        at_row = (batch.to(gl.int64) * heads * PACK + head * PACK + i_row % PACK) * n_q + i_row // PACK
        gl.store(lse + at_row, b_lse, mask=i_row < n_q * PACK)
        factor = gl.convert_layout(gl.where(attends, 1.0 / total, 0.0), gl.SliceLayout(1, O_LAYOUT))[:, None]
        acc = gl.where(factor != 0, acc * factor, 0.0)  # unattended keys in loaded tiles may be NaN
        o_row = row + C * EDGE + gl.arange(0, EDGE, gl.SliceLayout(1, O_LAYOUT))
        i_col = gl.arange(0, V_WIDTH, gl.SliceLayout(0, O_LAYOUT))
        p_out = out + batch.to(gl.int64) * out_batch + (head * PACK + o_row % PACK).to(gl.int64) * out_head
        p_out += (o_row // PACK).to(gl.int64) * out_row
        p_out = gl.multiple_of(p_out, 16)  # bytes; the plan guarantees this alignment
        m_out = (o_row < n_q * PACK)[:, None]
        if V_WIDTH > D_V:
            m_out = m_out & (i_col < D_V)[None, :]
        gl.store(p_out[:, None] + i_col[None, :], acc.to(out.dtype.element_ty), mask=m_out)


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
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(q_filled.index(c), count=1)
        mbarrier.init(q_free.index(c), count=1)
        mbarrier.init(turns.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(k_filled.index(s), count=1)
        mbarrier.init(k_free.index(s), count=CONSUMERS)
        mbarrier.init(v_filled.index(s), count=1)
        mbarrier.init(v_free.index(s), count=CONSUMERS)
    fence_async_shared()

    tiles = q_tile, k_tiles, v_tiles
    filled, free = (q_filled, k_filled, v_filled), (q_free, k_free, v_free)
    results = out, out_batch, out_head, out_row, lse
    sizes = first, end, n_q, n_k, heads, batch_heads, blocks, section
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume_tiles, (tiles, filled, free, turns, results, scale, sizes, FIRST, END, D_V, PACK, COLS,
                                 STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS, 0)),
                (consume_tiles, (tiles, filled, free, turns, results, scale, sizes, FIRST, END, D_V, PACK, COLS,
                                 STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS, 1)),
                (load_tiles, ((q_map, k_map, v_map), tiles, filled, free, sizes, group, FIRST, END, PACK, COLS,
                              STAGES, CONSUMERS)),
            ],
            [4, 1],
            [240, LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume_tiles, (tiles, filled, free, turns, results, scale, sizes, FIRST, END, D_V, PACK, COLS,
                                 STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS, 0)),
                (consume_tiles, (tiles, filled, free, turns, results, scale, sizes, FIRST, END, D_V, PACK, COLS,
                                 STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS, 1)),
                (consume_tiles, (tiles, filled, free, turns, results, scale, sizes, FIRST, END, D_V, PACK, COLS,
                                 STAGES, PING_PONG, ORDERED, WHOLE_COLS, CONSUMERS, 2)),
                (load_tiles, ((q_map, k_map, v_map), tiles, filled, free, sizes, group, FIRST, END, PACK, COLS,
                              STAGES, CONSUMERS)),
            ],
            [4, 4, 1],
            [160, 160, LOADER_REGISTERS],
        )  # fmt: skip
