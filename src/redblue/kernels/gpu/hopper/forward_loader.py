"""The warp of the forward kernel on Hopper that loads queries, keys and values by TMA."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
# pyright: reportCallIssue=false, reportAssignmentType=false
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from redblue.kernels.gpu.hopper.row_blocks import EDGE, block_of, key_tiles

copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # its older name
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def load_tiles(maps, shared, call, c):
    """The loader's loop over blocks: queries, then keys and values tile by tile, from the last tile to the first."""
    tiles, filled, free = shared.tiles, shared.filled, shared.free
    ROWS: gl.constexpr = c.CONSUMERS * EDGE
    uses, blocks_done = 0, 0
    for work in range(gl.program_id(0), call.batch_heads * call.blocks, gl.num_programs(0)):
        stream, block = block_of(work, call, c.END)
        batch, head = stream // call.heads, stream % call.heads
        key_head = head * c.PACK // call.group
        row = block * ROWS
        low, _, _, high = key_tiles(call, row, gl.minimum(row + ROWS, call.n_q * c.PACK), c)
        for i in gl.static_range(c.CONSUMERS):
            mbarrier.wait(free.q.index(i), (blocks_done & 1) ^ 1)
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
        blocks_done += 1  # noqa: SIM113 (Gluon has no enumerate)
