"""The lowered form of masks: every pair is where the mask says, and runs are few."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import compositions, leaves
from redblue.masks.lowered import SHORTEST, Lowered, lowered

SIZES = st.integers(1, 45)


def rebuilt(low: Lowered, plane: int, rows: int, n_k: int, panel: int) -> np.ndarray:
    """The dense array that one plane stands for; what the form promises is asserted on the way."""
    panels = -(-rows // panel)
    dense = np.zeros((rows, n_k), bool)
    for p in range(panels):
        begin, end = low.starts[plane * panels + p : plane * panels + p + 2]
        before, was_full, short = -1, False, False
        whole = (1 << len(dense[p * panel : (p + 1) * panel])) - 1
        here = dense[p * panel : (p + 1) * panel]
        for first, stop, at in low.runs[begin:end].tolist():
            assert max(before, 0) <= first < stop <= n_k
            if first == before:
                assert was_full != (at < 0), "neighbouring full runs are one, and so are those with bits"
                assert not short, "a short full run has bits"
                assert at >= 0 or stop - first >= SHORTEST, "a short full run has bits"
            if at < 0:
                here[:, first:stop] = True
            else:
                words = low.bits[at : at + stop - first]
                assert words.all(), "every key of a run is attended"
                ones = "".join("1" if word == whole else "0" for word in words.tolist())
                assert "1" * SHORTEST not in ones, "a long full run has no bits"
                bits = (words >> np.arange(64, dtype=np.uint64)[:, None]) & np.uint64(1)
                assert not bits[len(here) :].any(), "rows that do not exist attend nothing"
                here[:, first:stop] = bits[: len(here)]
            before, was_full, short = stop, at < 0, at < 0 and stop - first < SHORTEST
    return dense


def check(mask, dense, group, panel):
    n_q, n_k = dense.shape
    low = lowered(mask, n_q, n_k, group, panel)
    stacked = np.repeat(dense, group, axis=0)
    assert low.planes.shape == ()
    assert len(low.starts) == -(-n_q * group // panel) + 1
    assert (low.starts[-1], low.nnz) == (len(low.runs), stacked.sum())
    assert np.array_equal(rebuilt(low, 0, n_q * group, n_k, panel), stacked)
    assert [array.dtype for array in low[:4]] == [np.int64, np.int64, np.uint64, np.int64]


@settings(max_examples=400, deadline=None)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.sampled_from([1, 3, 16, 32, 64]))
def test_every_constructor(data, n_q, n_k, group, panel):
    check(*data.draw(leaves(n_q, n_k)), group, panel)


@settings(max_examples=500, deadline=None)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.sampled_from([1, 3, 16, 32, 64]))
def test_random_compositions(data, n_q, n_k, group, panel):
    check(*data.draw(compositions(n_q, n_k)), group, panel)
