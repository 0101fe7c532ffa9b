"""The lowered form of masks: it has exactly the mask's pairs, in few runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, RedblueError
from redblue.masks.lowered import MIN_FULL_RUN, Lowered, lowered
from redblue.masks.patterns import spans, tiling
from support.examples import examples
from support.mask_oracle import compositions, leaves

SIZES = st.integers(1, 45)


def rebuilt(low: Lowered, plane: int, rows: int, n_k: int, panel: int) -> np.ndarray:
    """Return the dense array of one plane, and assert the guarantees of the lowered form."""
    panels = -(-rows // panel)
    dense = np.zeros((rows, n_k), bool)
    for p in range(panels):
        begin, end = low.starts[plane * panels + p : plane * panels + p + 2]
        before, was_full, short = -1, False, False
        whole = (1 << len(dense[p * panel : (p + 1) * panel])) - 1
        panel_rows = dense[p * panel : (p + 1) * panel]
        for first, stop, first_word in low.runs[begin:end].tolist():
            assert max(before, 0) <= first < stop <= n_k
            if first == before:
                assert was_full != (first_word < 0), "neighbouring full runs are one, and so are those with bits"
                assert not short, "a short full run has bits"
                assert first_word >= 0 or stop - first >= MIN_FULL_RUN, "a short full run has bits"
            if first_word < 0:
                panel_rows[:, first:stop] = True
            else:
                words = low.bits[first_word : first_word + stop - first]
                assert words.all(), "every key of a run is attended"
                ones = "".join("1" if word == whole else "0" for word in words.tolist())
                assert "1" * MIN_FULL_RUN not in ones, "a long full run has no bits"
                bits = (words >> np.arange(64, dtype=np.uint64)[:, None]) & np.uint64(1)
                assert not bits[len(panel_rows) :].any(), "rows that do not exist attend nothing"
                panel_rows[:, first:stop] = bits[: len(panel_rows)]
            before, was_full, short = stop, first_word < 0, first_word < 0 and stop - first < MIN_FULL_RUN
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


@examples(400)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.sampled_from([1, 3, 16, 32, 64]))
def test_every_constructor(data, n_q, n_k, group, panel):
    check(*data.draw(leaves(n_q, n_k)), group, panel)


@examples(500)
@given(st.data(), SIZES, SIZES, st.integers(1, 3), st.sampled_from([1, 3, 16, 32, 64]))
def test_random_compositions(data, n_q, n_k, group, panel):
    check(*data.draw(compositions(n_q, n_k)), group, panel)


def test_a_million_tokens():
    """Documents of uneven length and a window, 1.6e8 of 1e12 pairs. The cost grows with the tiles, not the pairs."""
    n, lengths = 1_000_000, np.tile([100, 300, 1600], 500)
    mask = Mask.documents(lengths) & Mask.sliding_window(200, 50)
    low = lowered(mask, n, n, 1, 16)
    assert low.nnz == 500 * sum(Mask.sliding_window(200, 50).nnz(length, length) for length in (100, 300, 1600))
    assert len(low.bits) < 50 * n / 16
    assert lowered(mask, n, n, 1, 16) is low
    indptr, indices = (Mask.sliding_window(1, 0) & Mask.documents(lengths)).to_csr()
    assert (len(indptr), len(indices)) == (n + 1, 2 * n - len(lengths))


def test_a_long_run_is_looked_at_in_pieces(monkeypatch):
    monkeypatch.setattr(spans, "CHUNK", 7)
    rng = np.random.default_rng(0)
    for mask in (Mask.n_of_m(2, 5), Mask.n_of_m(1, 3) | Mask.from_dense(rng.random((40, 50)) < 0.3)):
        check(mask, np.array(mask.on(40, 50).dense(range(40), range(50))), 2, 16)
        assert len(mask.to_csr(40, 50)[1]) == mask.to_dense(40, 50).sum()


def test_masks_with_partial_tiles_nearly_everywhere_are_refused(monkeypatch):
    monkeypatch.setattr(tiling, "MAX_WORDS", 1000)
    with pytest.raises(RedblueError, match="is attended in part: n_q = 64 and n_k = 700 need more than"):
        lowered(Mask.n_of_m(2, 4), 64, 700, 1, 16)
    monkeypatch.setattr(spans, "MAX_LISTED", 100)
    with pytest.raises(RedblueError, match=r"the mask has .* runs or keys, and at most 100 can be listed"):
        lowered(Mask.strided(20), 640, 640, 1, 16)
    monkeypatch.setattr(spans, "MAX_RANGES", 39)
    with pytest.raises(RedblueError, match="needs a list of 40 entries, of at most 39"):
        lowered(Mask.causal(), 640, 640, 1, 16)


@examples(200)
@given(st.data(), SIZES, st.integers(1, 200), st.integers(1, 3), st.sampled_from([1, 16, 64]), st.booleans())
def test_arrays_of_long_runs(data, n_q, n_k, group, panel, one_row):
    """Boolean arrays are lowered by the compiled core, eight keys at a time; `one_row` serves all queries."""
    cuts = data.draw(st.lists(st.integers(0, n_k), max_size=6))
    row = np.searchsorted(np.sort(cuts), np.arange(n_k), side="right") % 2 == 0
    dense = np.broadcast_to(row, (n_q, n_k)).copy()
    if not one_row:
        for i, j in data.draw(st.lists(st.tuples(st.integers(0, n_q - 1), st.integers(0, n_k - 1)), max_size=8)):
            dense[i, j:] ^= True
    mask = Mask.from_dense(row if one_row else dense)
    check(mask, dense, group, panel)
    assert mask.nnz(n_q, n_k) == dense.sum()


def test_too_many_words_are_refused(monkeypatch):
    from redblue.masks import lowered as module

    monkeypatch.setattr(module, "MAX_WORDS", 3)
    with pytest.raises(RedblueError, match="is attended in part: n_q = 4 and n_k = 5"):
        lowered(Mask.from_dense(np.arange(20).reshape(4, 5) % 3 == 0), 4, 5, 1, 4)
