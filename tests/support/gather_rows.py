"""A Triton kernel of known traffic, which gathers rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_rows(x, rows, out, n_rows, n_cols, stride: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """out[i] = x[rows[i]], a block of rows per program."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    f = tl.arange(0, COLS)
    row = tl.load(rows + i, mask=i < n_rows, other=0)
    live = (i < n_rows)[:, None] & (f < n_cols)[None, :]
    block = tl.load(x + row[:, None] * stride + f[None, :], mask=live, other=0.0)
    tl.store(out + i[:, None] * n_cols + f[None, :], block, mask=live)


def rows_case(n_rows, n_cols, dtype=torch.float32):
    x = torch.randn(9, n_cols).to(dtype)
    return x, torch.randint(9, (n_rows,), dtype=torch.int32), torch.full((n_rows, n_cols), torch.nan, dtype=dtype)


def gather(x, rows, out):
    n_rows, n_cols = out.shape
    gather_rows[(triton.cdiv(n_rows, 4),)](x, rows, out, n_rows, n_cols, x.stride(0), ROWS=4, COLS=8)
