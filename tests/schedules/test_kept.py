"""Tiles that stay for the next block: counts by hand, compulsory traffic if all fits, and the gain of plans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, count, lower_bound, schedules
from redblue.catalogue.memories import Level, Memory
from redblue.lab import planner
from redblue.masks.patterns.band import Band
from redblue.schedules.kept import MAX_BLOCKS, loaded_cols
from support.examples import examples

bands = st.builds(
    Band,
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(-500, 100),
    st.integers(-100, 500),
    st.sampled_from([1, 2, 3, 7]),
).filter(lambda band: band.first < band.end)


def loaded(pairs, rows, cols, keep):
    """The columns that are loaded, computed with a plain list of the last row block's column blocks."""
    attends, kept, total = pairs.dense(range(pairs.n_rows), range(pairs.n_cols)), set(), 0
    limit, blocks = -(-keep // cols), -(-pairs.n_cols // cols)
    for start in range(0, pairs.n_rows, rows):
        some = attends[start : start + rows].any(axis=0)
        attended = [j for j in range(blocks) if some[j * cols : (j + 1) * cols].any()]
        total += sum(min(cols, pairs.n_cols - j * cols) for j in attended if j not in kept)
        kept = kept.union(attended) if limit >= blocks else set(attended[-limit:])
    return total


@examples(300)
@given(pairs=bands, rows=st.integers(1, 60), cols=st.integers(1, 30), keep=st.integers(1, 450), flip=st.booleans())
def test_columns_loaded_under_a_band_are_those_of_a_list(pairs, rows, cols, keep, flip):
    pairs = pairs.T if flip else pairs
    expected = loaded(pairs, rows, cols, keep)
    assert loaded_cols(pairs, rows, cols, keep) == expected
    edges = np.array([1, rows, 2 * rows]), np.array([keep, 1, cols])  # the search passes arrays
    assert loaded_cols(pairs, edges[0], cols, edges[1])[0] == loaded(pairs, 1, cols, keep)
    assert loaded_cols(pairs, edges[0], cols, edges[1])[2] == loaded(pairs, 2 * rows, cols, cols)


@examples(60)
@given(data=st.data())
def test_columns_loaded_under_any_mask_are_those_of_a_list(data):
    n_q, n_k = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    pairs = Mask.from_dense(
        np.array(data.draw(st.lists(st.booleans(), min_size=n_q * n_k, max_size=n_q * n_k))).reshape(n_q, n_k)
    ).on(n_q, n_k)
    rows, cols, keep = (data.draw(st.integers(1, 9)) for _ in range(3))
    assert loaded_cols(pairs, rows, cols, keep) == loaded(pairs, rows, cols, keep)


def test_a_list_of_too_many_blocks_is_refused():
    n = MAX_BLOCKS + 1
    with pytest.raises(RedblueError, match=r"at most 1,048,576 blocks of rows can be counted: give larger tiles"):
        count(
            "flash_kept",
            Problem(n, n, 8, mask=Mask.causal() & Mask.documents([n // 2, n - n // 2])),
            tiles={"rows": 1, "cols": 1, "keep": 1},
        )


@pytest.mark.parametrize(("n_q", "n_k", "d", "d_v"), [(300, 40, 8, 8), (40, 300, 8, 8), (97, 61, 5, 9)])
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal("bottom-right")], ids=repr)
def test_a_cache_that_holds_all_keys_moves_each_word_once(n_q, n_k, d, d_v, mask):
    """The counts reach the bound of Theorem 0: backward exactly, forward except for storing the log-sum-exp."""
    everything = {"rows": 1, "cols": 1, "keep": n_k}
    forward = Problem(n_q, n_k, d, d_v, mask=mask)
    assert count("flash_kept", forward, tiles=everything).words == n_q * (d + d_v + 1) + n_k * (d + d_v)
    for direction, name in (("backward", "flash_kept"), ("gradient_x", "gradient_x_once")):
        problem = Problem(n_q, n_k, d, d_v, mask=mask, direction=direction)
        tiles = {"rows": 1, "cols": n_k} | ({"keep": 1} if name == "flash_kept" else {})
        counted = count(name, problem, tiles=tiles)
        bound = lower_bound(problem, counted.peak)
        assert (bound.name, counted.words) == ("compulsory", bound.words)


def test_under_a_window_each_key_is_loaded_once_if_a_block_and_its_window_fit():
    problem = Problem(4096, 4096, 64, mask=Mask.sliding_window(127))
    counted = count("flash_kept", problem, tiles={"rows": 32, "cols": 1, "keep": 160})
    assert counted.reads == 2 * 4096 * 64 + 4096 * 64
    flash = count("flash", problem, words=counted.peak)
    assert flash.words > 1.3 * counted.words


@pytest.mark.parametrize(("words", "times"), [(524_417, 1.19), (540_149, 1.49)])
def test_two_blocks_move_fewer_words(words, times):
    """All keys fit, except for the words of one row; with 3 % more words, these fit as well."""
    problem = Problem(4096, 4096, 64)
    assert count("flash", problem, words=words).words >= times * count("flash_kept", problem, words=words).words


def two_level(words):
    """A machine with a software-managed memory of `words` 16-bit words."""
    levels = Level("scratchpad", 2 * words, 1, 1e12), Level("DRAM", None, 1, 1e9)
    return Memory("toy", "toy", "cpu", levels, {"float16": 1e12}, 1)


def test_plans_choose_a_variant_only_where_it_saves_one_per_cent():
    assert [name for name in schedules.BUILT_IN if schedules.get(name).variant] == ["flash_kept", "gradient_x_once"]
    for n, words, name in ((4096, 540_149, "flash_kept"), (1 << 22, 540_149, "flash")):
        level = planner.plan(Problem(n, n, 64), two_level(words)).levels[0]
        assert level.schedule == name
        assert ("flash_kept" in level.candidates) == (name == "flash_kept")
