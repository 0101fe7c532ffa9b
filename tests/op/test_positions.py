"""Positions on NumPy arrays: blocks have the alibi distances and the dropout pattern of the whole problem."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import Mask, Positions, RedblueError
from support.attention import DTYPES, kept, running
from support.drawn_calls import SPILL_TILES, TILES, TWO_PASS_TILES
from support.examples import examples
from support.positions import D_V, HEADS, KEY_HEADS, LEAD, N_K, N_Q, PLACEMENTS, SEED, SHARE, SLOPES, block

SCHEDULES = "flash", "hybrid", "small_cache", "gather"
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.2, "float16": 0.03}


def results(cut, **options):
    q, k, v, dout = cut.arrays
    options = cut.options | options
    out, lse = rb.attention(q, k, v, return_lse=True, **options)
    return [out, lse, *rb.attention_backward(dout, q, k, v, out, lse, **options)]


def check(cut, attends=None, **options):
    expected = cut.expected(attends)
    for name, got in zip(("out", "lse", "dq", "dk", "dv"), results(cut, **options), strict=True):
        tolerance = TOLERANCE[cut.arrays[0].dtype.name]
        np.testing.assert_allclose(got.astype(np.float64), expected[name], atol=tolerance, err_msg=name)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("queries", PLACEMENTS)
def test_blocks_of_every_placement(schedule, queries):
    for keys, heads in product(PLACEMENTS, KEY_HEADS):
        check(block(queries, keys, heads), schedule=schedule)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_type(isa, dtype, schedule):
    with running(isa):
        check(block("zigzag", "strided", dtype=DTYPES[dtype]), schedule=schedule)


@examples(40)
@given(data=st.data())
def test_no_tile_changes_the_pattern_or_the_distances(data):
    draw = data.draw
    cut = block(*(draw(st.sampled_from(list(of))) for of in (PLACEMENTS, PLACEMENTS, KEY_HEADS)))
    attends = np.random.default_rng(draw(st.integers(0, 99))).random((len(cut.queries), len(cut.keys))) < 0.6
    with running(None, draw(TILES | TWO_PASS_TILES | SPILL_TILES), 2, draw(st.booleans())):
        check(cut, attends, mask=Mask.from_dense(attends))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scores_of_alibi_are_bitwise_those_of_the_whole(schedule):
    """With queries of 0 and one attended key per query, the log-sum-exp is the score."""
    q, k = np.zeros((HEADS, N_Q, 1), np.float32), np.zeros((HEADS, N_K, 1), np.float32)
    alibi = SLOPES[0].astype(np.float32)
    queries, keys = PLACEMENTS["random"](N_Q), PLACEMENTS["zigzag"](N_K)
    for shift in range(0, len(keys), 3):
        columns = (np.arange(len(queries)) + shift) % len(keys)
        part_mask = Mask.from_coo(np.arange(len(queries)), columns, (len(queries), len(keys)))
        in_whole = Mask.from_coo(queries, keys[columns], (N_Q, N_K))
        _, whole = rb.attention(q, k, k, alibi=alibi, mask=in_whole, schedule=schedule, return_lse=True)
        part = q[:, queries], k[:, keys], k[:, keys]
        positions = Positions(queries, keys, N_Q, N_K)
        _, lse = rb.attention(
            *part, alibi=alibi, mask=part_mask, schedule=schedule, positions=positions, return_lse=True
        )
        assert np.array_equal(lse, whole[:, queries])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_positions_of_the_whole_change_no_bit(schedule):
    cut = block("whole", "whole", dtype=np.float32)
    with_positions = results(cut, schedule=schedule)
    without = results(cut, schedule=schedule, positions=None)
    for x, y in zip(with_positions, without, strict=True):
        assert np.array_equal(x, y)


def test_a_pair_measures_alibi_between_its_numbers():
    cut = block("whole", "whole")
    without = results(cut, positions=None, dropout=0.0)
    for queries in (np.arange(N_Q) + N_K - N_Q, (np.arange(N_Q) + N_K - N_Q).astype(np.uint16)):
        for pair in ((queries, np.arange(N_K)), [queries.tolist(), range(N_K)]):
            for x, y in zip(results(cut, positions=pair, dropout=0.0), without, strict=True):
                assert np.array_equal(x, y)


def test_heads_of_later_batch_entries():
    """A block of the second batch entry, of its last two heads."""
    pattern = kept((*LEAD, HEADS, N_Q, N_K), SHARE, SEED)
    q, k = np.zeros((2, N_Q, 1), np.float32), np.zeros((2, N_K, 1), np.float32)
    v = np.broadcast_to(np.eye(N_K, dtype=np.float32), (2, N_K, N_K))
    positions = Positions(np.arange(N_Q), np.arange(N_K), N_Q, N_K, first_head=HEADS + 2, heads=HEADS)
    out = rb.attention(q, k, v, dropout=SHARE, seed=SEED, positions=positions)
    assert np.array_equal(out != 0, pattern[1, 2:])


def test_positions_beyond_32_bits_of_rows_and_at_the_end_of_the_largest_whole():
    """Rows of neighbouring heads do not share a pattern. Where possible, the reference is a call with fewer rows."""
    n = 2**31
    positions = Positions(np.arange(n - 5, n), np.arange(n - 9, n), n, n, heads=4)
    q, k = np.zeros((4, 5, 1), np.float32), np.zeros((4, 9, 1), np.float32)
    v = np.broadcast_to(np.eye(9, dtype=np.float32), (4, 9, 9))
    pattern = rb.attention(q, k, v, dropout=0.5, seed=1, positions=positions) != 0
    assert len(np.unique(pattern.reshape(4, -1), axis=0)) == 4
    later = Positions(np.arange(n - 5, n), np.arange(n - 9, n), n, n, first_head=2, heads=4)
    assert np.array_equal(rb.attention(q[2:], k[2:], v[2:], dropout=0.5, seed=1, positions=later) != 0, pattern[2:])
    _, lse = rb.attention(q, k[:, :1], v[:, :1], alibi=np.ones(1), positions=(range(5), [n - 1]), return_lse=True)
    np.testing.assert_allclose(lse, np.float32(1 - n) * np.ones((4, 5)), rtol=1e-6)


@pytest.mark.parametrize("n_q", [0, 1, 3])
@pytest.mark.parametrize("n_k", [0, 1, 5])
def test_few_and_no_rows_and_keys(n_q, n_k):
    q, k, v = np.ones((1, HEADS, n_q, 3)), np.ones((1, 2, n_k, 3)), np.ones((1, 2, n_k, D_V))
    queries, keys = PLACEMENTS["strided"](N_Q)[:n_q], PLACEMENTS["strided"](N_K)[:n_k]
    options = {"alibi": SLOPES[0], "positions": Positions(queries, keys, N_Q, N_K)}
    out, lse = rb.attention(q, k, v, return_lse=True, **options)
    scores = 3**0.5 - SLOPES[0][:, None, None] * np.abs(queries[:, None] + N_K - N_Q - keys)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse[0], np.log(np.exp(scores).sum(-1)))
    gradients = rb.attention_backward(out, q, k, v, out, lse, **options)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


def test_without_alibi_and_dropout_positions_change_nothing():
    cut = block("strided", "random")
    off = {"alibi": None, "dropout": 0.0}
    for x, y in zip(results(cut, **off), results(cut, **off, positions=None), strict=True):
        assert np.array_equal(x, y)


def test_two_dimensions_are_one_head():
    q = np.random.default_rng(0).standard_normal((7, 4))
    positions = Positions(range(3, 10), range(7), 12, heads=4, first_head=3)
    options = {"alibi": np.array([0.5]), "dropout": 0.3, "seed": 1, "positions": positions}
    assert np.array_equal(rb.attention(q, q, q, **options), rb.attention(q[None], q[None], q[None], **options)[0])


ROWS, KEYS = np.arange(4), np.arange(6)
BAD = {
    "no pair": (5, r"positions must be a pair \(queries, keys\) or a redblue\.Positions, got int"),
    "an array": (np.zeros((2, 4), int), "got ndarray"),
    "three": ((ROWS, KEYS, 4), "got 3 of them"),
    "too few queries": ((ROWS[1:], KEYS), r"positions\.queries must have one number for each query of q \(4\), got 3"),
    "too many keys": ((ROWS, range(7)), r"positions\.keys must have one number for each key of k \(6\), got 7"),
    "a fraction": ((ROWS + 0.0, KEYS), r"whole numbers, one for each of the 4 queries, got shape \(4,\) of float64"),
    "two dimensions": ((ROWS, KEYS[:, None]), r"positions\.keys must be whole numbers, .* shape \(6, 1\) of int64"),
    "booleans": ((ROWS, KEYS > 2), r"positions\.keys must be whole numbers, .* of bool"),
    "negative": ((ROWS - 1, KEYS), r"positions\.queries\[0\] must be at least 0 and below 2147483648, got -1"),
    "beyond": (Positions(ROWS, KEYS, 4, 5), r"positions\.keys\[5\] must be at least 0 and below 5, got 5"),
    "one length": (Positions(ROWS, KEYS, 4), r"positions\.keys\[4\] must be at least 0 and below 4, got 4"),
    "no number": (Positions(ROWS, KEYS, "4"), r"positions\.n_q must be a whole number of at least 0, got '4'"),
    "negative length": (Positions(ROWS, KEYS, 4, -1), r"positions\.n_k must be a whole number of at least 0, got -1"),
    "too long": (Positions(ROWS, KEYS, 2**31 + 1), r"positions\.n_q must be at most 2,147,483,648, got"),
    "heads": (
        Positions(ROWS, KEYS, 9, heads=1),
        r"positions must hold the 2 heads of the call .*, got 1 heads and",
    ),
    "head": (Positions(ROWS, KEYS, 9, first_head=3, heads=4), r"got 4 heads and first_head 3"),
    "no head": (Positions(ROWS, KEYS, 9, first_head=-1), r"positions\.first_head must be a whole number of at least 0"),
    "ragged": (([[1], [2, 3]], KEYS), r"positions\.queries must be whole numbers"),
    "text": (("abcd", KEYS), r"positions\.queries must be whole numbers"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_bad_positions_are_named(name, kind):
    positions, message = BAD[name]
    q, k = np.zeros((2, 4, 3), np.float32), np.zeros((2, 6, 3), np.float32)
    lse = np.zeros((2, 4), np.float32)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        q, k = torch.from_numpy(q), torch.from_numpy(k)
    else:
        with pytest.raises(RedblueError, match=message):
            rb.attention_backward(q, q, k, k, q, lse, positions=positions)
    with pytest.raises(RedblueError, match=message):
        rb.attention(q, k, k, alibi=None if kind == "numpy" else q.new_ones(2), positions=positions)


def test_dropout_needs_the_number_of_queries():
    q = np.zeros((4, 3))
    with pytest.raises(RedblueError, match=r"positions must have n_q for dropout.*give redblue\.Positions"):
        rb.attention(q, q, q, dropout=0.5, seed=1, positions=(ROWS, ROWS))


def test_packed_sequences_have_no_positions():
    with pytest.raises(TypeError, match=r"attention_varlen\(\) got an unexpected keyword argument 'positions'"):
        rb.attention_varlen([], [], [], [0], positions=1)
