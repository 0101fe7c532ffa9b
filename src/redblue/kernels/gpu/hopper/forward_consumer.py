"""The warpgroups of the forward kernel on Hopper that multiply tiles and apply the softmax, 64 rows each."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from redblue.kernels.gpu.hopper.forward_memory import matrix
from redblue.kernels.gpu.hopper.row_blocks import EDGE, block_of, key_tiles

LN2 = gl.constexpr(0.6931471805599453)
LOWEST = gl.constexpr(-3.0e38)  # the initial row maximum: finite, so that -inf - LOWEST is not NaN


class Band(NamedTuple):
    """The keys low .. high - 1 that each row attends; low None: from the first."""

    low: Any
    high: Any


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
    uses, blocks_done = 0, 0
    for work in range(gl.program_id(0), call.batch_heads * call.blocks, gl.num_programs(0)):
        stream, block = block_of(work, call, c.END)
        batch, head = stream // call.heads, stream % call.heads
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
        mbarrier.wait(filled.q.index(CONSUMER), blocks_done & 1)
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

        # Multiply the probabilities of the first tile, which was visited last, by its values
        acc, p, row_max, row_sum = state
        stage, parity = (uses - 1) % c.STAGES, ((uses - 1) // c.STAGES) & 1
        mbarrier.wait(filled.v.index(stage), parity)
        acc = warpgroup_mma(p, matrix(tiles.v.index(stage)), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free.v.index(stage), count=1)
        blocks_done += 1  # noqa: SIM113 (Gluon has no enumerate)

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
