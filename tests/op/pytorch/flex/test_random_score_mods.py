"""Random score functions: each is either refused or equals the dense reference. None is computed wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import redblue as rb
from support.flex import check, tensors

N, M, H = 7, 9, 2


def parameter(*shape):
    values = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64) + 0.5
    return torch.nn.Parameter(values)


TABLES = parameter(H, N), parameter(H, M), parameter(2, H, N, M), parameter(H, N + M), parameter()
PER_QUERY, PER_KEY, FULL, RELATIVE, NUMBER = TABLES
SLOPES = torch.tensor([0.5, 0.25], dtype=torch.float64)

VALUES = {
    "2": lambda b, h, i, j: 2.0,
    "-1": lambda b, h, i, j: -1.0,
    "number": lambda b, h, i, j: NUMBER,
    "slope": lambda b, h, i, j: SLOPES[h],
    "per query": lambda b, h, i, j: PER_QUERY[h, i],
    "per key": lambda b, h, i, j: PER_KEY[h, j],
    "full": lambda b, h, i, j: FULL[b, h, i, j],
    "relative": lambda b, h, i, j: RELATIVE[h, i - j + M - 1],
    "alibi": lambda b, h, i, j: -SLOPES[h] * (i - j).abs(),
    "signed alibi": lambda b, h, i, j: (j - i) * SLOPES[h] / 2,
    "aligned alibi": lambda b, h, i, j: 0.25 * (j - (i + M - N)).abs(),
    "aligned signed alibi": lambda b, h, i, j: (i - j + M - N) * -0.25,
    "position": lambda b, h, i, j: j,
}
CONDITIONS = {
    "causal": lambda b, h, i, j: i >= j,
    "causal, aligned": lambda b, h, i, j: j <= i + (M - N),
    "later": lambda b, h, i, j: j > i,
    "near": lambda b, h, i, j: (i - j).abs() < 4,
    "window": lambda b, h, i, j: (j - i <= 1) & (i < j + 3) & (h == 0),
    "head": lambda b, h, i, j: h == 0,
    "early keys": lambda b, h, i, j: j < 5 + b,
    "odd": lambda b, h, i, j: (i + j) % 2 == 1,
    "not causal": lambda b, h, i, j: ~(i >= j),
    "every": lambda b, h, i, j: b.new_ones((), dtype=torch.bool),
}
INFINITY = float("inf")
STEPS = {
    "times": lambda s, x, c, t: s * x,
    "over": lambda s, x, c, t: s / (x + 3),
    "plus": lambda s, x, c, t: s + x,
    "minus": lambda s, x, c, t: s - x,
    "minus twice": lambda s, x, c, t: torch.sub(s, x, alpha=2) if isinstance(x, torch.Tensor) else s - 2 * x,
    "from": lambda s, x, c, t: x - s,
    "cap": lambda s, x, c, t: 1.5 * torch.tanh(s / 1.5),
    "mask": lambda s, x, c, t: torch.where(c, s, -INFINITY),
    "mask the others": lambda s, x, c, t: torch.where(c, -INFINITY, s),
    "fill": lambda s, x, c, t: s.masked_fill(c, -INFINITY),
    "either": lambda s, x, c, t: torch.where(c, s, s + x),
    "either times": lambda s, x, c, t: torch.where(c, s * x, s),
    "with the raw score": lambda s, x, c, t: s + t * x,
    "where the raw score": lambda s, x, c, t: torch.where(c, s, t),
    "replace": lambda s, x, c, t: torch.where(c, s, x),
}
programs = st.lists(
    st.tuples(st.sampled_from(list(STEPS)), st.sampled_from(list(VALUES)), st.sampled_from(list(CONDITIONS))),
    min_size=1,
    max_size=4,
)
served = []


def score_mod_of(program):
    def score_mod(score, b, h, i, j):
        s = score
        for step, value, condition in program:
            s = STEPS[step](s, VALUES[value](b, h, i, j), CONDITIONS[condition](b, h, i, j), score)
        return s

    return score_mod


def is_correct_or_refused(program, n_q, n_k, kv_heads):
    call = tensors(n_q, n_k, heads=H, kv_heads=kv_heads)
    score_mod = score_mod_of(program)
    try:
        rb.flex_attention(*call, score_mod, enable_gqa=True)
    except rb.RedblueError:
        served.append(False)
        return
    served.append(True)
    check(*call, score_mod, captured=TABLES, close=1e-10)


@settings(max_examples=25, deadline=None)
@given(program=programs, size=st.sampled_from([(N, M), (N, N), (5, M), (1, 3)]), kv_heads=st.sampled_from([1, H]))
def test_random_score_mods(program, size, kv_heads):
    is_correct_or_refused(program, *size, kv_heads)


@pytest.mark.thorough
@pytest.mark.nightly
@settings(max_examples=1000, deadline=None)
@given(program=programs, size=st.sampled_from([(N, M), (N, N), (5, M), (1, 3)]), kv_heads=st.sampled_from([1, H]))
def test_a_thousand_random_score_mods(program, size, kv_heads):
    is_correct_or_refused(program, *size, kv_heads)


def test_many_of_them_are_served():
    served.clear()  # other tests may have run in another process
    test_random_score_mods()
    assert sum(served) >= 8
