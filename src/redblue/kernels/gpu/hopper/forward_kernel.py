"""The forward kernel for Hopper GPUs, in Gluon: one warp loads tiles, warpgroups multiply them and apply the softmax.

A block owns CONSUMERS * 64 rows. Its loader copies keys and values by TMA into two rings of STAGES tiles each. Each
consumer, a warpgroup of 64 rows, multiplies them: it issues the product for the scores of the next tile of keys and the
product P V of this tile, then computes the softmax of the next tile while the tensor cores work. With PING_PONG,
consumers take turns at issuing products, so that one computes its softmax while the other's products run.

Every barrier completes one phase per use of the tile that it guards. A wait for parity p returns once the phase of that
parity has completed; a barrier that was never used counts as having completed parity 1. So use number i of a ring
waits for parity (i // STAGES) & 1 of `filled` and the opposite parity of `free` (tests/support/gluon_model/).
"""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from redblue.kernels.gpu.hopper.forward_consumer import consume_tiles
from redblue.kernels.gpu.hopper.forward_loader import LOADER_REGISTERS, load_tiles
from redblue.kernels.gpu.hopper.forward_memory import Operands, Results, Shared
from redblue.kernels.gpu.hopper.row_blocks import Call, Constants


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
