"""Calls of PyTorch's flash-attention ops, and their results in float64."""

import numpy as np
import pytest
import torch

import redblue as rb
from redblue.lab import reference

aten = torch.ops.aten
SCHEMA = str(aten._flash_attention_forward.default._schema)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 4e-2, torch.float16: 6e-3}  # numbers of about 1
# An empty sequence, one without keys, and one with more queries than keys.
STARTS, KEY_STARTS = [0, 5, 5, 12, 20, 21], [0, 7, 9, 12, 30, 30]


def needs(option):
    return pytest.mark.skipif(option not in SCHEMA, reason=f"this PyTorch's op has no {option}")


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def packed(dtype=torch.float32):
    return randn(21, 4, 16, dtype=dtype), randn(30, 2, 16, dtype=dtype), randn(30, 2, 16, dtype=dtype, seed=1)


def padded(dtype=torch.float32):
    return tuple(randn(2, n, h, 16, dtype=dtype, seed=i) for i, (n, h) in enumerate(((9, 4), (11, 2), (11, 2))))


def int32(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def forward(q, k, v, starts=None, key_starts=None, dropout=0.0, causal=False, debug=False, **options):
    most = (q.shape[1], k.shape[1]) if starts is None else (10, 20)
    starts, key_starts = (None if x is None else int32(x) for x in (starts, key_starts))
    return aten._flash_attention_forward(q, k, v, starts, key_starts, *most, dropout, causal, debug, **options)


def expected(q, k, v, starts, key_starts, dout, left=-1, right=-1, **options):
    """Output, lse and gradients in float64, sequence by sequence, of tensors (total, heads, d)."""
    mask = rb.Mask.sliding_window(*(None if side < 0 else side for side in (left, right)), align="bottom-right")
    tensors = [x.detach().double().numpy().swapaxes(0, 1) for x in (q, k, v, dout)]
    parts = []
    for i, j, s, t in zip(starts, starts[1:], key_starts, key_starts[1:], strict=False):
        rows, keys = slice(i, j), slice(s, t)
        q1, k1, v1, g1 = tensors[0][:, rows], tensors[1][:, keys], tensors[2][:, keys], tensors[3][:, rows]
        attends = mask.to_dense(j - i, t - s)
        out, lse, *_ = reference.forward(q1, k1, v1, attends, **options)
        parts.append((out, lse[..., None], *reference.backward(q1, k1, v1, g1, attends, **options)[:3]))
    out, lse, *gradients = (np.concatenate(part, 1).swapaxes(0, 1) for part in zip(*parts, strict=True))
    return out, lse[..., 0].T, gradients


def close(got, wanted, tolerance):
    got = got.detach().double().numpy()
    assert got.shape == wanted.shape
    assert np.array_equal(np.isneginf(got), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    assert np.abs(got[finite] - wanted[finite]).max(initial=0) < tolerance * max(
        1.0, np.abs(wanted[finite]).max(initial=0)
    )
