"""Masks as values: constructors and their errors, equality, repr, planes for heads and batch entries, sizes."""

import copy
import pickle

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError
from redblue.masks.lowered import lowered
from support.examples import examples
from support.mask_oracle import compositions, leaves

SIZES = st.integers(1, 14)
TWO = np.array([[True, False, True], [False, True, True]])

PATTERNS = [
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(2, 1),
    Mask.prefix(3),
    Mask.dilated(2, step=2),
    Mask.strided(2),
    Mask.butterfly(2),
    Mask.bigbird(block=2),
    Mask.n_of_m(1, 2),
    Mask.random_blocks(0.5, block=2),
    Mask.global_tokens([]),
    Mask.causal() & Mask.n_of_m(1, 2),
]


# Algebra ------------------------------------------------------------------------------------------


@examples(100)
@given(st.data(), SIZES, SIZES)
def test_laws_of_the_algebra(data, n_q, n_k):
    (a, x), (b, y), (c, z) = (data.draw(compositions(n_q, n_k, most=2)) for _ in range(3))

    def same(left, other):
        assert np.array_equal(left.to_dense(n_q, n_k), other.to_dense(n_q, n_k))
        assert left.nnz(n_q, n_k) == other.nnz(n_q, n_k)

    same(~(a & b), ~a | ~b)
    same(~(a | b), ~a & ~b)
    for left, other in ((a & a, a), (a | a, a), (~~a, a), (a & (a | b), a), (a | (a & b), a)):
        same(left, other)
    same(a & b, b & a)
    same(a | b, b | a)
    same((a & b) & c, a & (b & c))
    same(a & (b | c), (a & b) | (a & c))
    same(a & ~a, ~Mask.full())
    same(a | ~a, Mask.full())
    assert np.array_equal((a & b | ~c).to_dense(n_q, n_k), (x & y) | ~z)


def test_simple_compositions_stay_simple():
    """Closed forms then remain available, and kernels recognise bands."""
    causal, window = Mask.causal(), Mask.sliding_window(5, 3)
    assert causal & window == Mask.sliding_window(5, 0)
    assert Mask.sliding_window(2, 7) | window == Mask.sliding_window(5, 7)
    assert causal | Mask.sliding_window(0, None) == Mask.full()
    assert Mask.full() & Mask.prefix(3) == Mask.prefix(3)
    assert Mask.full() | Mask.prefix(3) == Mask.full()
    assert ~~causal == causal
    layout = Mask.blocks(TWO, 4)
    assert ~layout == Mask.blocks(~TWO, 4)
    assert layout | ~layout == Mask.blocks(np.ones_like(TWO), 4)
    assert window & Mask.prefix(3) & causal == Mask.sliding_window(5, 0) & Mask.prefix(3)
    assert Mask.causal("bottom-right") & causal != causal
    assert Mask.n_of_m(3, 3).is_full


def test_only_masks_of_like_rows_combine():
    with pytest.raises(TypeError, match="unsupported operand"):
        Mask.causal() & np.ones((2, 2), bool)
    with pytest.raises(RedblueError, match="masks of 2 and of 1 rows per query cannot be combined"):
        Mask.causal().for_group(2) | Mask.prefix(3)


# Values -------------------------------------------------------------------------------------------


@examples(150)
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_repr_reads_like_the_constructor(data, n_q, n_k):
    mask, _ = data.draw(compositions(n_q, n_k))
    again = eval(repr(mask), {"Mask": Mask})
    assert again == mask
    assert hash(again) == hash(mask)
    assert repr(again) == repr(mask)
    for same in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert same == mask


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mask.blocks(np.eye(4, dtype=bool), 2),
        lambda: Mask.from_dense(np.tri(8, dtype=bool)),
        lambda: Mask.from_csr(*Mask.causal().to_csr(8, 8), 8),
        lambda: ~Mask.blocks(np.eye(4, dtype=bool), 2) & Mask.from_csr(*Mask.causal().to_csr(8, 8), 8),
    ],
)
def test_pickles_do_not_depend_on_what_was_computed_before(make):
    """Sweeps name masks by the hash of their pickles, which also travel to other processes."""
    mask = make()
    before = joblib.hash(mask), len(pickle.dumps(mask))
    dense = mask.to_dense(8, 8)
    assert (mask.on(8, 8).steps, hash(mask), repr(mask)) == (make().on(8, 8).steps, hash(make()), repr(make()))
    assert (joblib.hash(mask), len(pickle.dumps(mask))) == before
    same = pickle.loads(pickle.dumps(mask))
    assert (same, joblib.hash(same)) == (mask, before[0])
    assert np.array_equal(same.to_dense(8, 8), dense)


def test_pickles_of_graphs_hold_no_caches():
    graph = Mask.from_csr(*Mask.causal().to_csr(8, 8), 8).rule.pattern(8, 8)
    before = len(pickle.dumps(graph))
    assert graph.attends(np.array([3, 3]), np.array([3, 4])).tolist() == [True, False]
    assert len(pickle.dumps(graph)) == before
    same = pickle.loads(pickle.dumps(graph))
    assert same.attends(np.array([3, 3]), np.array([3, 4])).tolist() == [True, False]


@pytest.mark.parametrize("mask", PATTERNS, ids=repr)
def test_patterns_read_like_their_constructors(mask):
    assert eval(repr(mask), {"Mask": Mask}) == mask


def test_large_masks_print_in_short():
    large = Mask.documents([3] * 500)
    assert repr(large) == "Mask.documents(<500 numbers: 3, 3, 3, ..., 3, 3>)"
    assert len(repr(Mask.from_dense(np.ones((50, 50), bool)))) < 60
    assert len(repr(Mask.from_csr(np.arange(1001), np.arange(1000), 1000))) < 140
    assert repr(Mask.key_lengths(range(20))).count("prefix") == 4


def test_equal_arrays_are_equal_masks():
    indptr, indices = [0, 1, 3], [2, 0, 1]
    mask = Mask.from_csr(indptr, indices, 3)
    assert mask == Mask.from_csr(np.array(indptr, np.int32), np.array(indices, np.uint8), np.int64(3))
    assert mask == Mask.from_coo([1, 0, 1], [1, 2, 0], (2, 3))
    assert mask != Mask.from_csr(indptr, indices, 4)
    assert mask != Mask.from_csr(indptr, [2, 0, 2], 3)
    assert Mask.documents([2, 1]) == Mask.documents((2, 1), [2, 1])
    assert Mask.global_tokens([3, 1, 3]) == Mask.global_tokens([1, 3])
    array = TWO.copy()
    mask = Mask.from_dense(array)
    array[0, 0] = False  # the mask has its own copy
    assert mask == Mask.from_dense(TWO)


# Sizes --------------------------------------------------------------------------------------------


def test_masks_know_their_sizes():
    documents = Mask.documents([2, 3], [4, 0])
    assert documents.nnz() == 8
    assert documents.density() == 8 / 20
    assert (documents & Mask.causal()).to_dense().shape == (5, 4)
    assert Mask.from_dense(TWO[0]).nnz(n_q=5) == 10
    with pytest.raises(RedblueError, match=r"Mask.causal\(\) is for any sizes: give n_q and n_k"):
        Mask.causal().nnz()
    with pytest.raises(RedblueError, match="any sizes: give n_q"):
        Mask.from_dense(TWO[0]).to_dense()


@pytest.mark.parametrize("mask", PATTERNS, ids=repr)
@pytest.mark.parametrize(("n_q", "n_k"), [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_no_queries_or_no_keys(mask, n_q, n_k):
    for each in (
        mask,
        ~mask,
        mask & Mask.documents([n_q, 0], [0, n_k]),
        mask | Mask.from_dense(np.ones((n_q, n_k), bool)),
    ):
        dense = each.to_dense(n_q, n_k)
        assert dense.shape == (n_q, n_k)
        assert each.nnz(n_q, n_k) == dense.sum() == lowered(each, n_q, n_k, 1, 16).nnz
        assert len(each.to_csr(n_q, n_k)[1]) == dense.sum()
        assert 0 <= each.density(n_q, n_k) <= 1


@pytest.mark.parametrize("mask", [*PATTERNS[3:], Mask.documents([2**40, 2**40])], ids=repr)
def test_more_than_memory_holds_is_refused(mask):
    for ask in (lambda: lowered(mask, 2**41, 2**41, 1, 16), lambda: mask.to_csr(2**41, 2**41)):
        with pytest.raises(RedblueError, match=r"give (smaller|larger)"):
            ask()


@examples(100)
@given(st.data(), *4 * [SIZES])
def test_resized_masks_fit(data, n_q, n_k, new_q, new_k):
    mask, _ = data.draw(compositions(n_q, n_k))
    resized = mask.resized((n_q, n_k), (new_q, new_k))
    assert resized.to_dense(new_q, new_k).shape == (new_q, new_k)
    assert mask.resized((n_q, n_k), (n_q, n_k)) is mask


# Planes -------------------------------------------------------------------------------------------


@examples(60)
@given(st.data(), SIZES, SIZES, st.sampled_from([(2,), (3, 1), (2, 2)]), st.integers(1, 2))
def test_a_mask_per_head_and_batch_entry(data, n_q, n_k, shape, group):
    (a, x), (b, y), (c, z) = (data.draw(leaves(n_q, n_k)) for _ in range(3))
    count = int(np.prod(shape))
    masks, arrays = ([pair[i % 2] for i in range(count)] for pair in ((a, b), (x, y)))
    mask = ~(Mask.stack(masks, shape) & c)
    dense = ~(np.reshape(arrays, (*shape, n_q, n_k)) & z)
    assert mask.lead == shape
    assert np.array_equal(mask.to_dense(n_q, n_k), dense)
    assert mask.nnz(n_q, n_k) == dense.sum()
    assert mask.density(n_q, n_k) == pytest.approx(dense.mean())
    for i in range(count):
        assert np.array_equal(mask.plane(i).to_dense(n_q, n_k), dense.reshape(count, n_q, n_k)[i])
    low = lowered(mask, n_q, n_k, group, 16)
    assert low.planes.shape == shape
    assert low.planes.max() <= 1, "equal planes share one"
    panels = -(-n_q * group // 16)
    assert len(low.starts) == (low.planes.max() + 1) * panels + 1
    for i in range(count):
        alone, start = lowered(mask.plane(i), n_q, n_k, group, 16), low.planes.flat[i] * panels
        begin, end = low.starts[start], low.starts[start + panels]
        assert np.array_equal(low.starts[start : start + panels + 1] - begin, alone.starts)
        assert np.array_equal(low.runs[begin:end, :2], alone.runs[:, :2])
        words = [low.bits[k : k + stop - first] for first, stop, k in low.runs[begin:end].tolist() if k >= 0]
        assert np.array_equal(np.concatenate([low.bits[:0], *words]), alone.bits)


def test_planes_broadcast():
    heads, batch = Mask.per_head([Mask.causal(), Mask.full()]), Mask.key_lengths([2, 0, 4])
    assert (heads.lead, batch.lead, (heads & batch).lead) == ((2,), (3, 1), (3, 2))
    assert (heads & batch).plane(1) == Mask.prefix(2)
    assert (heads & batch).plane(4) == Mask.causal() & Mask.prefix(4)
    assert (heads | batch).plane(3) == Mask.full()
    assert Mask.per_batch([Mask.causal()]).lead == (1, 1)
    dense = np.random.default_rng(0).random((2, 1, 3, 5)) < 0.5
    assert np.array_equal(Mask.from_dense(dense).to_dense(), dense)
    assert Mask.from_dense(dense[:, :, :1]).to_dense(n_q=2).shape == (2, 1, 2, 5)
    assert Mask.per_head([Mask.full()] * 3).is_full


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mask.per_head([]), "at least one; got 0"),
        (lambda: Mask.stack([Mask.full()] * 3, (2, 2)), r"shape \(2, 2\) needs 4 masks, at least one; got 3"),
        (lambda: Mask.per_head([Mask.full(), None]), r"masks\[1\] must be a mask of one plane"),
        (lambda: Mask.per_head([Mask.key_lengths([1])]), r"masks\[0\] must be a mask of one plane"),
        (
            lambda: Mask.key_lengths([1, 2]) & Mask.key_lengths([1, 2, 3]),
            r"must broadcast, got shapes \(2, 1\) and",
        ),
        (lambda: Mask.key_lengths([1, 2]).plane(2), "planes 0 to 1"),
        (
            lambda: Problem(4, 4, 2, mask=Mask.key_lengths([1, 2])),
            r"one mask is needed, but .* 2.*mask.plane\(i\)",
        ),
        (lambda: Mask.key_lengths([1, 2]).to_csr(3, 3), r"2 planes, of shape \(2, 1\)"),
    ],
)
def test_planes_that_do_not_fit_are_refused(make, says):
    with pytest.raises(RedblueError, match=says):
        make()


# Random patterns ----------------------------------------------------------------------------------


def test_random_patterns_are_functions_of_seed_and_sizes():
    for make in (lambda seed: Mask.random_blocks(0.3, seed, block=2), lambda seed: Mask.bigbird(2, seed=seed)):
        first, same, other = (make(seed).to_dense(90, 80) for seed in (1, 1, 2))
        assert np.array_equal(first, same)
        assert not np.array_equal(first, other)
    blocks = Mask.random_blocks(0.3, block=(2, 4)).to_dense(200, 200)
    assert blocks.mean() == pytest.approx(0.3, abs=0.03)
    assert np.array_equal(blocks, np.repeat(np.repeat(blocks[::2, ::4], 2, 0), 4, 1))
    assert (Mask.random_blocks(0).nnz(99, 99), Mask.random_blocks(1).nnz(99, 99)) == (0, 99**2)


@pytest.mark.parametrize(("window", "first", "random"), [(3, 2, 3), (1, 0, 0), (5, 1, 40)])
def test_bigbird_has_its_three_kinds_of_blocks(window, first, random):
    rows, cols = 30, 24
    mask = Mask.bigbird(block=(2, 3), window=window, first=first, random=random)
    layout = mask.to_dense(2 * rows, 3 * cols)[::2, ::3]
    i, j = np.arange(rows)[:, None], np.arange(cols)
    known = (abs(i - j) <= window // 2) | (i < first) | (j < first)
    assert layout[known].all()
    assert np.array_equal(mask.to_dense(60, 72), np.repeat(np.repeat(layout, 2, 0), 3, 1))
    drawn = (layout & ~known).sum(axis=1)
    assert (drawn <= random).all()
    assert random == 0 or drawn.sum() > 0
    if random >= cols:
        assert layout.all()


# Refused arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mask.from_csr([1, 2], [0, 1], 3), r"indptr\[0\] must be 0, got 1"),
        (lambda: Mask.from_csr([], [], 3), r"indptr\[0\] must be 0, got an empty array"),
        (lambda: Mask.from_csr([0, 2, 1], [0], 3), r"indptr must not descend, but indptr\[2\] = 1 follows 2"),
        (lambda: Mask.from_csr([0, 1], [0, 1], 3), r"indptr\[1\] \(its last\) must be the number of indices, 2; got 1"),
        (lambda: Mask.from_csr([0, 1, 2], [0, 3], 3), r"indices\[1\] must be a key, 0 to n_k - 1 = 2, got 3"),
        (lambda: Mask.from_csr([0, 1, 2], [0, -1], 3), r"indices\[1\] must be a key, .* got -1"),
        (lambda: Mask.from_csr([0, 1, 3], [2, 1, 0], 3), r"in row 1 indices\[2\] = 0 follows 1: sort them"),
        (lambda: Mask.from_csr([0, 0, 2], [1, 1], 3), r"in row 1 indices\[1\] = 1 occurs twice"),
        (lambda: Mask.from_csr([0, 1], [0.5], 3), r"indices must be a list of whole numbers.* float64"),
        (lambda: Mask.from_csr([[0, 1]], [0], 3), r"indptr must be a list of whole numbers.* shape \(1, 2\)"),
        (lambda: Mask.from_csr([0, 1], [0], "3"), "n_k must be a whole number of at least [01], got '3'"),
        (lambda: Mask.from_csr([0, 1], [2**63], 2**60), r"indices\[0\] must fit 63 bits"),
        (lambda: Mask.from_csr([0, 1], [2**70], 2**60), "indices must be a list of whole numbers that fit 64 bits"),
        (lambda: Mask.from_coo([0, 1], [0], (2, 2)), "rows and cols must have the same length, got 2 and 1"),
        (lambda: Mask.from_coo([0, 2], [0, 1], (2, 2)), r"rows\[1\] must be 0 to 1, got 2"),
        (lambda: Mask.from_coo([0, 1], [0, -1], (2, 2)), r"cols\[1\] must be 0 to 1, got -1"),
        (lambda: Mask.from_coo([1, 0, 1], [1, 0, 1], (2, 2)), r"rows\[2\], cols\[2\] = 1, 1 repeats entry 0"),
        (lambda: Mask.from_coo([0], [0], 2), r"shape must be two whole numbers \(n_q, n_k\), got 2"),
        (lambda: Mask.from_coo([0], [0], (2**40, 2**40)), "are too many to list"),
        (lambda: Mask.documents([2, -1]), r"lengths\[1\] must be at least 0, got -1"),
        (lambda: Mask.documents([2], [1, 1]), r"key_lengths must have as many entries as lengths \(1\), got 2"),
        (lambda: Mask.documents([2**62, 2**62]), "lengths must add up to at most"),
        (lambda: Mask.documents("ab"), "lengths must be a list of whole numbers"),
        (lambda: Mask.documents([2, 3]).to_dense(6, 6), "for n_q = 5, but n_q = 6 .* must add up"),
        (lambda: Mask.key_lengths([3, -2]), r"lengths\[1\] must be at least 0, got -2"),
        (lambda: Mask.prefix(-1), "length must be a whole number of at least 0, got -1"),
        (lambda: Mask.prefix(1.5), "length must be a whole number of at least [01], got 1.5"),
        (lambda: Mask.dilated(3, 0), "step must be a whole number of at least 1, got 0"),
        (lambda: Mask.strided(0), "stride must be a whole number of at least 1, got 0"),
        (lambda: Mask.global_tokens([-1]), r"indices\[0\] must be at least 0, got -1"),
        (lambda: Mask.global_tokens([7]).nnz(5, 6), r"indices\[0\] of the global tokens is 7, but"),
        (lambda: Mask.butterfly(0), r"block\[0\] must be a whole number of at least 1, got 0"),
        (lambda: Mask.butterfly((1, 2, 3)), "block must be two whole numbers"),
        (lambda: Mask.bigbird(window=2), "window must be an odd number of blocks"),
        (lambda: Mask.n_of_m(3, 2), "n must be at most 2, got 3"),
        (lambda: Mask.n_of_m(0, 2), "n must be a whole number of at least 1, got 0"),
        (lambda: Mask.random_blocks(1.5), "density must be a number from 0 to 1, got 1.5"),
        (lambda: Mask.random_blocks(float("nan")), "density must be a number from 0 to 1, got nan"),
        (lambda: Mask.from_dense([[1, 0]]), "must be boolean .* got int64: pass array != 0"),
        (lambda: Mask.from_dense(True), "at least one axis"),
        (lambda: Mask.from_dense(np.ones((0, 2, 2), bool)), r"at least one .* head, got shape \(0, 2, 2\)"),
        (lambda: Mask.from_dense([[True], [True, False]]), "its rows have different lengths"),
        (lambda: Mask.from_dense(TWO).to_dense(3, 3), "the dense mask is for n_q = 2, but n_q = 3 was given"),
        (lambda: Mask.from_block_mask(TWO), "must be a torch.nn.attention.flex_attention.BlockMask, got ndarray"),
        (lambda: lowered(Mask.full(), 4, 4, 1, 65), "panel must be 1 to 64 rows, got 65"),
        (lambda: lowered(Mask.full().for_group(2), 4, 4, 1, 16), "2 rows per query: give the mask before for_group"),
        (lambda: lowered(Mask.full(), 4, 4, 0, 16), "group must be at least 1 row per query, got 0"),
        (lambda: (Mask.documents([3]) & Mask.documents([4])).nnz(3, 3), "mask of documents is for n_q = 4"),
        (lambda: Mask.causal().nnz(-1, 3), "n_q must be a whole number of at least 0, got -1"),
    ],
)  # fmt: skip
def test_malformed_arguments_are_named(make, says):
    with pytest.raises(RedblueError, match=says):
        make()
