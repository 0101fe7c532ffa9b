"""Options of PyTorch's flash-attention ops: pages, used keys, alibi and splits."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch import flash_kernels
from support.flash_ops import (
    KEY_STARTS,
    SCHEMA,
    STARTS,
    aten,
    close,
    expected,
    forward,
    int32,
    needs,
    packed,
    padded,
    randn,
)


@needs("block_table")
def test_pages():
    q, pool, values = randn(21, 4, 16), randn(7, 4, 2, 16), randn(7, 4, 2, 16, seed=1)
    table, used = [[3, 1], [0, 0], [5, 2], [6, 4], [6, 6]], [7, 0, 5, 8, 1]
    k, v = (torch.cat([x[row].flatten(0, 1)[:n] for row, n in zip(table, used, strict=True)]) for x in (pool, values))
    starts = np.append(0, np.cumsum(used)).tolist()
    wanted, lse, _ = expected(q, k, v, STARTS, starts, torch.zeros(21, 4, 16), right=0)
    options = {"seqused_k": int32(used), "block_table": int32(table), "causal": True}
    with rb.flash_ops(), torch.no_grad():
        close(forward(q, pool, values, STARTS, None, **options)[0], wanted, 4e-6)
        close(forward(q, pool, values, STARTS, None, **options)[1], lse, 1e-5)
        with pytest.raises(rb.RedblueError, match=r"block_table\[1, 0\] must be a page, 0 to 6, got 7"):
            forward(
                q,
                pool,
                values,
                STARTS,
                None,
                seqused_k=int32([7, 1, 5, 8, 1]),
                block_table=int32([[7, 7]] * 5).where(torch.arange(5)[:, None] == 1, int32(table)),
            )
        with pytest.raises(rb.RedblueError, match=r"block_table has 2 pages .* seqused_k\[0\] = 9 keys need 3"):
            forward(q, pool, values, STARTS, None, seqused_k=int32([9, 0, 5, 8, 1]), block_table=int32(table))
        with pytest.raises(rb.RedblueError, match="block_table needs seqused_k"):
            forward(q, pool, values, STARTS, None, block_table=int32(table))
        with pytest.raises(rb.RedblueError, match="block_table must be whole numbers"):
            forward(q, pool, values, STARTS, None, seqused_k=int32(used), block_table=int32(table[:2]))
        with pytest.raises(rb.RedblueError, match=r"\(pages, page size, heads, d\)"):
            forward(q, k, v, STARTS, None, seqused_k=int32(used), block_table=int32(table))


@needs("seqused_k")
def test_used_part_of_the_keys():
    q, k, v = packed()
    used = [3, 0, 3, 18, 0]
    rows = np.concatenate([np.arange(s, s + n) for s, n in zip(KEY_STARTS, used, strict=False)])
    starts = np.append(0, np.cumsum(used)).tolist()
    wanted, _, _ = expected(q, k[rows], v[rows], STARTS, starts, torch.zeros(21, 4, 16), right=0)
    with rb.flash_ops(), torch.no_grad():
        close(forward(q, k, v, STARTS, KEY_STARTS, causal=True, seqused_k=int32(used))[0], wanted, 4e-6)
        with pytest.raises(rb.RedblueError, match=r"seqused_k\[1\] must be 0 to 2"):
            forward(q, k, v, STARTS, KEY_STARTS, seqused_k=int32([0, 3, 0, 0, 0]))
        with pytest.raises(rb.RedblueError, match="seqused_k must have one entry for each of 5 sequences, got 2"):
            forward(q, k, v, STARTS, KEY_STARTS, seqused_k=int32([0, 3]))
        with pytest.raises(rb.RedblueError, match="padded"):
            forward(*padded(), seqused_k=int32([1, 1]))


@needs("alibi_slopes")
@pytest.mark.parametrize("own", [False, True], ids=["heads", "sequences"])
def test_alibi(own):
    slopes = torch.linspace(0.1, 0.8, 20).reshape(5, 4) if own else torch.tensor([0.5, 0.25, 0.1, 0.0])
    q, k, v = packed()
    with rb.flash_ops(), torch.no_grad():
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS, causal=True, alibi_slopes=slopes)
        two = slopes[:2] if own else slopes
        of_batch = forward(*padded(), alibi_slopes=two)[0]
        with pytest.raises(rb.RedblueError, match=r"alibi_slopes must be \(4,\) or \(5, 4\), got \(3,\)"):
            forward(q, k, v, STARTS, KEY_STARTS, alibi_slopes=torch.ones(3))
        with pytest.raises(rb.RedblueError, match=r"alibi_slopes .* dropout_p must be 0"):
            forward(q, k, v, STARTS, KEY_STARTS, alibi_slopes=slopes, dropout=0.1)
    for i in range(5):
        rows, keys = slice(STARTS[i], STARTS[i + 1]), slice(KEY_STARTS[i], KEY_STARTS[i + 1])
        part = q[rows], k[keys], v[keys]
        slope = (slopes[i] if own else slopes).double().numpy()
        sizes = [0, rows.stop - rows.start], [0, keys.stop - keys.start]
        wanted, wanted_lse, _ = expected(*part, *sizes, torch.zeros_like(part[0]), right=0, alibi=slope)
        close(out[rows], wanted, 4e-6)
        close(lse[:, rows], wanted_lse, 1e-5)
    for b, entry in enumerate(zip(*padded(), strict=True)):
        slope = (slopes[b] if own else slopes).double().numpy()
        close(of_batch[b], expected(*entry, [0, 9], [0, 11], torch.zeros(9, 4, 16), alibi=slope)[0], 4e-6)


@needs("num_splits")
def test_one_split_makes_a_sequence_independent_of_the_others():
    q, k, v = randn(75, 4, 16), randn(300, 2, 16), randn(300, 2, 16, seed=1)
    starts, key_starts = int32([0, 1, 38, 75]), int32([0, 90, 127, 300])
    batch = tuple(x[:1].expand(3, -1, -1, -1) for x in padded())
    with rb.flash_ops(), torch.no_grad():
        several = aten._flash_attention_forward(q, k, v, starts, key_starts, 50, 200, 0.0, True, False, num_splits=1)
        single = aten._flash_attention_forward(
            q[38:], k[127:], v[127:], int32([0, 37]), int32([0, 173]), 50, 200, 0.0, True, False, num_splits=1
        )
        assert torch.equal(several[0][38:], single[0])
        assert torch.equal(several[1][:, 38:], single[1])
        assert torch.equal(forward(*batch, num_splits=1)[0][2:], forward(*(x[:1] for x in batch), num_splits=1)[0])
        with pytest.raises(rb.RedblueError, match="num_splits must be 0"):
            forward(*batch, num_splits=-1)
        with pytest.raises(rb.RedblueError, match="num_splits=1 is for inference only"):
            forward(*batch, num_splits=1, dropout=0.5)


def test_the_parts_of_an_empty_batch_have_the_width_of_the_values(monkeypatch):
    monkeypatch.setattr(flash_kernels, "_takes_other_widths", lambda: True)  # false before PyTorch 2.15
    q, k, v = (x[:0] for x in padded())
    out, lse, *_ = flash_kernels.forward(q, k, v[..., :8], None, None, 9, 11, 0.0, False, False, num_splits=1)
    assert (out.shape, lse.shape) == ((0, 9, 4, 8), (0, 4, 9))


@pytest.mark.parametrize("option", [x for x in ("seqused_k", "alibi_slopes") if x in SCHEMA])
def test_options_without_gradient(option):
    q, k, v = packed()
    value = {"seqused_k": int32([1] * 5), "alibi_slopes": torch.ones(4)}[option]
    with rb.flash_ops(), pytest.raises(rb.RedblueError, match=f"{option} is for inference only"):
        forward(q, k, v, STARTS, KEY_STARTS, **{option: value})
