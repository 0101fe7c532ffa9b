"""Masks made of blocks: tile queries, refused arguments, and Proposition 4 of Dao et al."""

import contextlib
import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import Mask, Problem, RedblueError, TooFewWords, count, lower_bounds, schedules
from redblue.cli.options import parse_mask
from redblue.lab import counts, plans
from redblue.lab.text import mask_text
from redblue.problem import DIRECTIONS
from redblue.studies.report.checks import small
from support.examples import examples, thorough
from support.mask_oracle import members, pieces
from support.spaces import block_masks

DIAGONAL = [[True, False], [False, True]]


def random_layout(n, block, share, seed=0):
    rng = np.random.default_rng(seed)
    return Mask.blocks(rng.random((n // block, n // block)) < share, block=(block, block))


def sums_by_hand(dense, rows, cols):
    i, j = pieces(dense.shape[0], rows), pieces(dense.shape[1], cols)
    by_rows = np.logical_or.reduceat(dense, [piece.start for piece in i], axis=0)
    live = np.logical_or.reduceat(by_rows, [piece.start for piece in j], axis=1)
    i, j = np.array([*map(len, i)])[:, None], np.array([*map(len, j)])
    return [int((live * weight).sum()) for weight in (1, i, j, i * j)]


@examples(200)
@given(st.data(), st.integers(1, 12), st.integers(1, 14), st.integers(1, 3), st.integers(1, 40), st.integers(1, 16))
def test_tile_questions_equal_the_dense_mask(data, n_q, n_k, group, rows, cols):
    mask = data.draw(block_masks(n_q, n_k))
    pairs = mask.for_group(group).on(group * n_q, n_k)
    dense = np.repeat(mask.to_dense(n_q, n_k), group, axis=0)
    layout, (bq, bk) = mask.rule.layout, mask.rule.block
    assert np.array_equal(mask.to_dense(n_q, n_k), np.repeat(np.repeat(layout, bq, 0), bk, 1)[:n_q, :n_k])
    assert pairs.nnz == pairs.T.nnz == dense.sum()
    assert pairs.is_full == mask.is_full == dense.all()
    for laid, whole in ((pairs, dense), (pairs.T, dense.T)):
        assert (laid.n_rows, laid.n_cols) == whole.shape
        assert laid.cols_of(range(0)) == ()
        for i in pieces(laid.n_rows, rows):
            assert members(laid.cols_of(i)) == list(np.flatnonzero(whole[i].any(axis=0)))
            for j in pieces(laid.n_cols, cols):
                assert members(laid.rows_of(j)) == list(np.flatnonzero(whole[:, j].any(axis=1)))
                assert laid.holds(i, j) == whole[i][:, j].all()
                assert np.array_equal(laid.dense(i, j), whole[i][:, j])
        assert list(laid.sums(rows, cols)) == sums_by_hand(whole, rows, cols)


@examples(100)
@given(st.data(), st.integers(1, 12), st.integers(1, 14), st.integers(1, 3))
def test_sums_over_arrays_are_those_of_each_pair(data, n_q, n_k, group):
    mask, edge = data.draw(block_masks(n_q, n_k)), st.lists(st.integers(1, 40), min_size=1, max_size=5)
    pairs = mask.for_group(group).on(group * n_q, n_k)
    rows, cols = (np.array(data.draw(edge)) for _ in range(2))
    dense = pairs.dense(range(pairs.n_rows), range(n_k))
    for sums in (pairs.sums(rows[:, None], cols[None]), pairs.sums(rows[:, None], cols)):
        for a, b in np.ndindex(len(rows), len(cols)):
            assert [int(x[a, b]) for x in sums] == sums_by_hand(dense, rows[a], cols[b])
    for i, total in enumerate(pairs.sums(3, cols).area):
        assert total == sums_by_hand(dense, 3, cols[i])[3]


def test_sums_of_a_layout_too_large_to_take_at_once():
    """Above 2^14 blocks, column edges are grouped too. Sums stay exact beyond 2^53 and 2^63 pairs."""
    rng = np.random.default_rng(3)
    mask = Mask.blocks(rng.random((130, 129)) < 0.02, block=(3, 2))
    pairs, dense = mask.on(388, 257), mask.to_dense(388, 257)
    rows, cols = np.array([1, 3, 4, 64, 200, 388]), np.array([1, 2, 5, 64, 100, 257])
    sums = pairs.sums(rows[:, None], cols)
    for a, b in np.ndindex(6, 6):
        assert [int(x[a, b]) for x in sums] == sums_by_hand(dense, rows[a], cols[b])
    for n in (2**26 + 1, 2**31 + 1, 2**40 + 1):
        diagonal = Mask.blocks(DIAGONAL, block=(n + 1) // 2)
        large, half = (n + 1) // 2, n // 2
        assert diagonal.nnz(n, n) == large**2 + half**2
        assert diagonal.on(n, n).sums(n, 1).area == n * n
        assert list(diagonal.on(n, n).sums(np.array([large]), np.array([large])).area) == [large**2 + half**2]


def test_a_layout_of_all_true_counts_like_the_full_mask():
    everything = Mask.blocks(np.ones((3, 4), bool), block=(5, 4))
    for schedule in schedules.SCHEDULES.values():
        for direction in schedule.passes.keys() & DIRECTIONS:
            full = Problem(13, 15, 6, direction=direction)
            blocks = dataclasses.replace(full, mask=everything)
            words = 300 if schedule.name == "gradient_x_once" else 150  # so that it holds all keys
            a, b = (count(schedule.name, problem, words=words) for problem in (full, blocks))
            assert (a.words, a.peak, a.tiles) == (b.words, b.peak, b.tiles)


# Proposition 4 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_flash_moves_n_d_and_s_n_squared_d_squared_over_m(share):
    """n d + n (d + 1) + 4 s n^2 d^2 / M words, within 5 %: Proposition 4, with FlashAttention-2's constant."""
    n, d, words = 16384, 64, 68000  # enough for 512 rows, the edge of a block
    mask = random_layout(n, 512, share)
    moved = count("flash", Problem(n, n, d, mask=mask), words=words)
    assert moved.tiles["rows"] == 512
    streamed = moved.words - n * d - n * (d + 1)
    assert streamed == pytest.approx(4 * mask.density(n, n) * n**2 * d**2 / words, rel=0.05)


SOME = [("flash", "forward"), ("hybrid", "backward"), ("small_cache", "forward")]
OTHERS = [thorough("flash", "backward"), thorough("hybrid", "forward"), thorough("small_cache", "backward")]


@pytest.mark.parametrize(("name", "direction"), [*SOME, *OTHERS])
def test_words_are_proportional_to_the_share_of_blocks(name, direction):
    """Within 8 %: if most blocks attend, tiles may cross block edges at little cost, so they can fill the cache."""
    n = 65536
    masks = [random_layout(n, 1024, share) for share in (0.1, 0.5, 0.9)]
    words = [count(name, Problem(n, n, 128, mask=mask, direction=direction), words=8192).words for mask in masks]
    per_pair = [moved / mask.nnz(n, n) for moved, mask in zip(words, masks, strict=True)]
    assert per_pair == pytest.approx(3 * per_pair[-1:], rel=0.08)


def test_the_search_knows_the_edges_of_the_blocks():
    """Tiles that cross block edges hold unattended pairs; the search returns tiles nearly as good as aligned ones."""
    n, words = 8192, 131072
    problem = Problem(n, n, 128, mask=random_layout(n, 128, 0.1))
    for name, edges in (("small_cache", {"rows": 128, "cols": 128, "out_rows": 896, "out_cols": 128}),
                        ("hybrid", {"rows": 128, "cols": 128, "out_rows": 896, "out_cols": 128})):  # fmt: skip
        assert count(name, problem, words=words).words <= count(name, problem, tiles=edges).words


def test_the_search_knows_the_edges_of_the_blocks_where_it_tries_few_edges():
    rng = np.random.default_rng(0)
    problem = Problem(65000, 65000, 64, mask=Mask.blocks(rng.random((109, 109)) < 0.1, block=600))
    for rows in (600, 1200):  # neither is the smallest edge for its number of tiles
        aligned = count("flash", problem, tiles={"rows": rows})
        assert count("flash", problem, words=aligned.peak).words <= aligned.words


@pytest.mark.parametrize(("name", "direction"), [*SOME, *OTHERS])
def test_more_cache_never_costs_more_words(name, direction):
    problem = Problem(1024, 1024, 64, mask=random_layout(1024, 64, 0.3), direction=direction)
    words = [count(name, problem, words=2**k).words for k in range(10, 22)]
    assert words == sorted(words, reverse=True)


@examples(40)
@given(st.data(), st.sampled_from(["forward", "backward", "gradient_x"]), st.integers(1, 400))
def test_every_bound_lies_below_every_count(data, direction, words):
    n_q, n_k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    mask = data.draw(block_masks(n_q, n_k))
    heads = 1 if direction == "gradient_x" else data.draw(st.integers(1, 2))
    problem = Problem(n_q, n_k, 3, 2, heads=heads, kv_heads=1, mask=mask, direction=direction)
    bounds = lower_bounds(problem, words)
    assert mask.is_full or "Theta" not in {bound.name for bound in bounds}
    for schedule in schedules.SCHEDULES.values():
        if direction not in schedule.passes or schedule.full_only or not schedule.drop_in:
            continue
        with contextlib.suppress(TooFewWords):
            moved = count(schedule.name, problem, words=words).words
            assert all(bound.words <= moved for bound in bounds if bound.proved), schedule.name


# A value ------------------------------------------------------------------------------------------


def test_equal_layouts_are_equal_masks():
    array = np.array(DIAGONAL)
    mask = Mask.blocks(array, block=(2, 3))
    array[0, 0] = False  # the mask has its own copy
    assert mask == Mask.blocks(DIAGONAL, (np.int64(2), 3))
    assert hash(mask) == hash(Mask.blocks(DIAGONAL, [2, 3]))
    assert mask != Mask.blocks(DIAGONAL, (3, 2))
    assert mask != Mask.blocks(array, (2, 3))
    assert Mask.blocks(np.zeros((1, 2), bool), 1) != Mask.blocks(np.zeros((2, 1), bool), 1)
    assert Mask.blocks(DIAGONAL, 4) == Mask.blocks(DIAGONAL, (4, 4))
    for same in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert same == mask
        assert same.nnz(4, 6) == 12
    with pytest.raises(ValueError, match="read-only"):
        mask.rule.layout[0, 0] = False


def test_representations_are_short():
    mask = Mask.blocks(DIAGONAL, block=(2, 3))
    assert repr(mask) == "Mask.blocks([[True, False], [False, True]], block=(2, 3))"
    assert eval(repr(mask), {"Mask": Mask}) == mask
    large = Mask.blocks(np.eye(64, dtype=bool), block=128)
    assert repr(large) == "Mask.blocks(<64 x 64, 0.0156 of them True>, block=(128, 128))"
    assert mask_text(large) == "64 x 64 blocks, density 2%"


def test_texts_of_windows_name_both_sides():
    assert mask_text(Mask.sliding_window(3, 0)) == "window 3 back"
    assert mask_text(Mask.sliding_window(1000, 2)) == "window 1,000 back and 2 ahead"
    assert mask_text(Mask.sliding_window(3, None)) == "window 3 back and all ahead"
    assert mask_text(Mask.sliding_window(0, None)) == "window all ahead"
    assert mask_text(Mask.sliding_window(0, 0)) == "diagonal"


@pytest.mark.parametrize(
    ("layout", "block", "says"),
    [
        ([True, False], 2, r"2-D boolean array, got shape \(2,\)"),
        ([[True], [True, False]], 2, "its rows have different lengths"),
        ([[1, 0]], 2, r"must be boolean \(True: attend\), got int64: pass layout != 0"),
        (DIAGONAL, 0, r"block\[0\] must be a whole number of at least 1, got 0"),
        (DIAGONAL, (2, 0), r"block\[1\] must be a whole number of at least 1, got 0"),
        (DIAGONAL, (2, 2.5), r"block\[1\] must be a whole number of at least 1, got 2.5"),
        (DIAGONAL, (2, 2, 2), r"block must be two whole numbers \(queries, keys\) of at least 1, or one for both"),
        (DIAGONAL, True, r"block\[0\] must be a whole number of at least 1, got True"),
        (DIAGONAL, "22", r"block\[0\] must be a whole number of at least 1, got '22'"),
    ],
)
def test_bad_layouts_are_refused(layout, block, says):
    with pytest.raises(RedblueError, match=says):
        Mask.blocks(layout, block)


def test_a_layout_that_does_not_fit_is_refused_at_once():
    says = r"layout has 2 x 2 blocks of 4 queries x 4 keys, but n_q = 8 and n_k = 9 need 2 x 3: give another"
    with pytest.raises(RedblueError, match=says):
        Problem(8, 9, 4, heads=2, kv_heads=1, mask=Mask.blocks(DIAGONAL, 4))
    assert Problem(5, 8, 4, heads=2, kv_heads=1, mask=Mask.blocks(DIAGONAL, 4)).one_stream().mask.nnz(10, 8) == 2 * 20


# Where masks are used -----------------------------------------------------------------------------


def test_plans_and_checks_take_layouts():
    problem = Problem(4096, 4096, 128, heads=8, kv_heads=2, mask=random_layout(4096, 256, 0.2), direction="backward")
    plan = rb.plan(problem, "h100-sxm")
    assert "blocks=" not in str(plan)
    assert json.loads(json.dumps(plan.to_dict()))["problem"]["mask"] == repr(problem.mask)
    assert plans.describe(problem)["mask"] == repr(problem.mask)
    tiny = small(problem)
    assert isinstance(tiny.mask.rule, type(problem.mask.rule))
    assert 0 < tiny.mask.density(tiny.n_q, tiny.n_k) < 1
    level = plan.levels[0]
    assert level.schedule is not None
    assert counts.check(level.schedule, tiny, words=2000).error < 1e-10


@given(st.data(), *4 * [st.integers(1, 30)])
def test_resized_layouts_fit(data, n_q, n_k, new_q, new_k):
    mask = data.draw(block_masks(n_q, n_k))
    assert mask.resized((n_q, n_k), (new_q, new_k)).on(new_q, new_k).n_cols == new_k
    assert mask.resized((n_q, n_k), (n_q, n_k)) is mask


def test_layouts_from_the_command_line(tmp_path):
    path = tmp_path / "lay,out.npy"
    np.save(path, np.array(DIAGONAL))
    assert parse_mask(f"blocks:{path},4") == Mask.blocks(DIAGONAL, 4)
    assert parse_mask(f"blocks:{path},4,8") == Mask.blocks(DIAGONAL, (4, 8))
    np.savez(tmp_path / "many.npz", a=np.array(DIAGONAL))
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "broken.npy").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty.npy").write_bytes(b"")
    for text, says in (
        (f"blocks:{path}", r"blocks:FILE.npy,BQ\[,BK\], .*, such as .*blocks:layout.npy,128, .*; got"),
        (f"blocks:{path},0", r"block\[0\] must be a whole number of at least 1, got 0"),
        (f"blocks:{tmp_path / 'none.npy'},2", "cannot read .*none.npy"),
        (f"blocks:{tmp_path / 'many.npz'},2", "holds several arrays"),
        (f"blocks:{tmp_path / 'pickled.npy'},2", "cannot read"),
        (f"blocks:{tmp_path / 'broken.npy'},2", "cannot read"),
        (f"blocks:{tmp_path / 'empty.npy'},2", "cannot read"),
    ):
        with pytest.raises(RedblueError, match=says):
            parse_mask(text)
