"""Score functions with a counterpart: outputs, log-sum-exps and all gradients against PyTorch and a dense reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import redblue as rb
from redblue.op.pytorch import dispatch
from support.flex import check, eager, tensors

N, M, H = 19, 23, 4
INFINITY = float("inf")


def parameter(*shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return torch.nn.Parameter(values)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
LEARNED = parameter(H)
RELATIVE, FULL, SHARED = parameter(H, 2 * M + 1), parameter(2, H, N, M), parameter(1, 1)
PER_QUERY, PER_KEY, TEMPERATURE = parameter(2, H, N), parameter(H, M), parameter()
COORDINATES = parameter(M, 2)
DOCUMENT = torch.tensor([0] * 6 + [1] * 1 + [2] * 9 + [3] * 7)
BYTES = torch.tensor([1, 2, 3, 200], dtype=torch.uint8)
PREFIX = torch.tensor([4, 9])


class Embedding(torch.nn.Module):
    """A bias per bucket of distances, as in T5."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, H, dtype=torch.float64)
        torch.nn.init.normal_(self.embedding.weight, generator=torch.Generator().manual_seed(5))

    def __call__(self, s, b, h, i, j):
        return s + self.embedding((i - j).abs().clamp(max=7))[h]


T5 = Embedding()


def softcap(s, cap):
    return cap * torch.tanh(s / cap)


SCORE_MODS = {
    "identity": lambda s, b, h, i, j: s,
    "scale": lambda s, b, h, i, j: s * 0.3,
    "division": lambda s, b, h, i, j: s / 3,
    "negated": lambda s, b, h, i, j: 2 - s,
    "linear": lambda s, b, h, i, j: s * 2 + s - 1,
    "temperature": lambda s, b, h, i, j: s * TEMPERATURE,
    "softcap": lambda s, b, h, i, j: softcap(s, 2.0),
    "negative softcap": lambda s, b, h, i, j: -2 * torch.tanh(s / 3),
    "softcap by a tensor": lambda s, b, h, i, j: softcap(s, SLOPES[0]),
    "no softcap at all": lambda s, b, h, i, j: 0 * torch.tanh(s) + FULL[b, h, i, j],
    "alibi": lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
    "alibi, aligned bottom right": lambda s, b, h, i, j: s - SLOPES[h] * (i + M - N - j).abs(),
    "alibi without an absolute value": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "alibi with the slopes' gradient": lambda s, b, h, i, j: s - LEARNED[h] * (i - j).abs(),
    "alibi by a formula": lambda s, b, h, i, j: s + (j - i) * torch.exp2(-((h + 1) * 8.0 / H)).double(),
    "alibi, causal": lambda s, b, h, i, j: torch.where(i + 4 >= j, s + SLOPES[h] * (j - i - 4), -INFINITY),
    "relative bias": lambda s, b, h, i, j: s + RELATIVE[h, i - j + M],
    "relative bias of an embedding": T5,
    "bias": lambda s, b, h, i, j: s + FULL[b, h, i, j],
    "bias of one number": lambda s, b, h, i, j: s + SHARED[0, 0],
    "bias, its axes in another order": lambda s, b, h, i, j: s + RELATIVE[h][j] + PER_QUERY[b][h, i],
    "bias by distance of coordinates": lambda s, b, h, i, j: s - ((COORDINATES[i] - COORDINATES[j]) ** 2).sum(),
    "softcap and bias": lambda s, b, h, i, j: softcap(s, 2.0) + FULL[b, h, i, j] - SLOPES[h] * (i - j).abs(),
    "factor per query": lambda s, b, h, i, j: s * PER_QUERY[b, h, i],
    "factor per key": lambda s, b, h, i, j: PER_KEY[h, j] * s + FULL[b, h, i, j],
    "factors of both": lambda s, b, h, i, j: s * (LEARNED[h] * PER_KEY[0, j]) * PER_QUERY[b, h, i] + 1,
    "scaled log n": lambda s, b, h, i, j: s * torch.log(i + 2.0).double(),
    "factor, softcap, bias": lambda s, b, h, i, j: softcap(s * LEARNED[h], 3) + RELATIVE[h, i - j + M],
    "causal": lambda s, b, h, i, j: torch.where(i >= j, s, -INFINITY),
    "causal by filling": lambda s, b, h, i, j: s.masked_fill(i < j, -INFINITY),
    "causal by addition": lambda s, b, h, i, j: s + torch.where(i >= j, 0, -INFINITY),
    "strictly causal": lambda s, b, h, i, j: torch.where(i > j, s, -INFINITY),
    "window": lambda s, b, h, i, j: torch.where((i >= j) & (i - j < 5), s, -INFINITY),
    "window by distance": lambda s, b, h, i, j: torch.where((i - j).abs() <= 3, s, -INFINITY),
    "dilated window": lambda s, b, h, i, j: torch.where(((i - j).abs() <= 8) & ((i - j) % 2 == 0), s, -INFINITY),
    "prefix LM": lambda s, b, h, i, j: torch.where((j < PREFIX[b]) | (i >= j), s, -INFINITY),
    "documents": lambda s, b, h, i, j: torch.where(DOCUMENT[i] == DOCUMENT[j], s, torch.full_like(s, -INFINITY)),
    "documents, causal, bias": lambda s, b, h, i, j: torch.where(
        (DOCUMENT[i] == DOCUMENT[j]) & (i >= j), s + FULL[b, h, i, j], -INFINITY
    ),
    "transfusion": lambda s, b, h, i, j: torch.where((i >= j) | ((i // 6 == j // 6) & (i // 6 % 2 == 1)), s, -INFINITY),
    "NATTEN in two dimensions": lambda s, b, h, i, j: torch.where(
        ((i // 5 - j // 5).abs() <= 1) & ((i % 5 - j % 5).abs() <= 1), s, -INFINITY
    ),
    "masked rows": lambda s, b, h, i, j: torch.where((i % 3 > 0) & (j != i), s, -INFINITY),
    "nested conditions": lambda s, b, h, i, j: torch.where(i < 5, s, torch.where(i >= j, s, -INFINITY)),
    "masks by head": lambda s, b, h, i, j: torch.where(
        h % 2 == 0, torch.where(i >= j, s, -INFINITY), torch.where(i <= j, s, -INFINITY)
    ),
    "bias for some heads": lambda s, b, h, i, j: torch.where(h < 2, s, s - SLOPES[h] * (i - j).abs()),
    "factor for some heads": lambda s, b, h, i, j: torch.where(h < 2, s * 2, s),
    "no score": lambda s, b, h, i, j: FULL[b, h, i, j] + 0,
    "small whole numbers": lambda s, b, h, i, j: 1 - (s - BYTES[h]) * 0.5 + (BYTES[h] * 0.5 - BYTES[h]),
    "small whole numbers that wrap": lambda s, b, h, i, j: s * (BYTES[h] * BYTES[h]) - -BYTES[h] * (i - j).abs(),
    "boolean term": lambda s, b, h, i, j: s + (i == j),
}
CAPTURED = (LEARNED, RELATIVE, FULL, SHARED, PER_QUERY, PER_KEY, TEMPERATURE, COORDINATES, T5.embedding.weight)


@pytest.fixture(autouse=True)
def plain_eager(monkeypatch):
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize("name", SCORE_MODS)
@pytest.mark.parametrize("kv_heads", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_every_score_mod(name, kv_heads):
    call = tensors(N, M, kv_heads=kv_heads)
    out, lse = rb.flex_attention(*call, SCORE_MODS[name], enable_gqa=True, return_lse=True)
    expected, expected_lse = eager(*call, SCORE_MODS[name])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)
    check(*call, SCORE_MODS[name], captured=CAPTURED)


WINDOW, CAUSAL = rb.Mask.sliding_window(4, 0), rb.Mask.causal()
NO_ARRAYS = {
    "causal": (CAUSAL, lambda s, b, h, i, j: torch.where(i >= j, s, -INFINITY)),
    "causal, turned round": (CAUSAL, lambda s, b, h, i, j: torch.where(j > i, -INFINITY, s)),
    "causal by filling": (CAUSAL, lambda s, b, h, i, j: s.masked_fill(i < j, -INFINITY)),
    "causal and a factor": (CAUSAL, lambda s, b, h, i, j: torch.where(i - j >= 0, s * PER_QUERY[b, h, i], -INFINITY)),
    "window": (WINDOW, lambda s, b, h, i, j: torch.where((i >= j) & (i - j < 5), s, -INFINITY)),
    "window in two steps": (
        WINDOW,
        lambda s, b, h, i, j: torch.where(
            i - j <= 4, torch.where(torch.logical_and(i >= j, j <= i + 3), s, -INFINITY), -INFINITY
        ),
    ),
    "window of floats": (WINDOW, lambda s, b, h, i, j: torch.where((i.double() - j <= 4) & (j <= i), s, -INFINITY)),
    "window by distance": (
        rb.Mask.sliding_window(3, 5),
        lambda s, b, h, i, j: torch.where((j - i - 1).abs() <= 4, s, -INFINITY),
    ),
    "softcap and alibi": (None, lambda s, b, h, i, j: softcap(s * 2, 3.0) - (i - j).abs() * SLOPES[h] / 2),
    "alibi twice": (None, lambda s, b, h, i, j: s - (SLOPES[h] * (j - i).abs().double() + 0.5 * (i - j).abs())),
    "signed alibi": (CAUSAL, lambda s, b, h, i, j: torch.where(i >= j, s - SLOPES[h] * (i - j), -INFINITY)),
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_windows_and_alibi_need_no_array(name, monkeypatch):
    mask, score_mod = NO_ARRAYS[name]
    calls, attention = [], dispatch.attention
    monkeypatch.setattr(dispatch, "attention", lambda *a: calls.append(a[3]) or attention(*a))
    rb.flex_attention(*tensors(N, N), score_mod)
    (options,) = calls
    assert options.bias is None
    assert options.mask == mask
    assert ("alibi" in name) == (options.alibi is not None)
    check(*tensors(N, N), score_mod, captured=(PER_QUERY,))


NEARLY = {
    "slopes with a gradient": lambda s, b, h, i, j: s - LEARNED[h] * (i - j).abs(),
    "one later key": lambda s, b, h, i, j: torch.where(i + 1 >= j, s - SLOPES[h] * (i - j), -INFINITY),
    "no mask": lambda s, b, h, i, j: s - SLOPES[h] * (i - j),
    "another diagonal": lambda s, b, h, i, j: s - SLOPES[h] * (i - j + 1).abs(),
    "whole numbers only": lambda s, b, h, i, j: s - (SLOPES[h] * (i - j).abs()).long(),
    "powers": lambda s, b, h, i, j: s - SLOPES[h] * ((i - j) * (i - j)),
    "twice the distance": lambda s, b, h, i, j: s - SLOPES[h] * (2 * i - 2 * j).abs(),
    "per query": lambda s, b, h, i, j: s - PER_QUERY[b, h, i] * (i - j).abs(),
    "a later window": lambda s, b, h, i, j: torch.where(j > i, s, -INFINITY),
    "a window off the diagonal": lambda s, b, h, i, j: torch.where((i - j - 3).abs() < 2, s, -INFINITY),
    "a window by half positions": lambda s, b, h, i, j: torch.where(i / 2 >= j, s, -INFINITY),
    "a window by blocks": lambda s, b, h, i, j: torch.where(i // 4 >= j // 4, s, -INFINITY),
    "a sum that wraps": lambda s, b, h, i, j: torch.where(i + (2**63 - 10) >= j, s, -INFINITY),
    "a sum of positions": lambda s, b, h, i, j: torch.where(i + j >= 9, s, -INFINITY),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_a_window_or_alibi(name, monkeypatch):
    calls, attention = [], dispatch.attention
    monkeypatch.setattr(dispatch, "attention", lambda *a: calls.append(a[3]) or attention(*a))
    check(*tensors(N, N), NEARLY[name], captured=(LEARNED, PER_QUERY))
    assert calls[0].alibi is None
    assert calls[0].bias is not None
