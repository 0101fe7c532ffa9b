"""Network bounds: compared with every distribution of the pairs of small problems, and their leading constants."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError
from redblue.bounds import network_bound, network_bounds
from redblue.bounds.network_curves import Curve
from redblue.bounds.table import _texts
from support.examples import examples, thorough
from support.spaces import problems

MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window": Mask.sliding_window(1, 0),
    "two-sided window": Mask.sliding_window(1, 1),
    "documents": Mask.documents([1, 2, 1]),
}
SIZES = [(2, 2, 1, 1), (3, 2, 2, 1), (2, 3, 1, 3), (3, 3, 2, 1)]


def costs(problem):
    """Words of a row and of a key: forward q, o and k, v; backward q, dO, dQ and k, v, dK, dV."""
    d, d_v = problem.d, problem.d_v
    return (d + d_v, d + d_v) if problem.direction == "forward" else (2 * d + d_v, 2 * d + 2 * d_v)


def every_distribution(pairs, world):
    """Yield every assignment of pairs to processes, in chunks: boolean arrays (ways, world, pairs)."""
    ways = np.arange(world**pairs)
    owner = ways[:, None] // world ** np.arange(pairs) % world
    return np.stack([owner == rank for rank in range(world)], axis=1)


def used(work, attends):
    """Which rows and keys each process needs, (ways, world, n_q) and (ways, world, n_k)."""
    i, j = np.nonzero(attends)
    rows = np.stack([work[..., i == row].any(axis=-1) for row in range(attends.shape[0])], axis=-1)
    keys = np.stack([work[..., j == key].any(axis=-1) for key in range(attends.shape[1])], axis=-1)
    return rows, keys


def tokens_of(n, world, kind):
    """Which tokens each process holds, at most ceil(n / world): bool (world, n)."""
    owner = np.arange(n) % world if kind == "striped" else np.arange(n) // -(-n // world)
    return owner == np.arange(world)[:, None]


def least_over(lacking, world):
    """The least words of the busiest process, and of all. lacking: words that each process lacks, (ways, world).

    A process at least receives or sends the words that it lacks. The mean counts each transferred word twice.
    """
    crossing = lacking.sum(axis=1)
    return np.maximum(lacking.max(axis=1), -(-2 * crossing // world)), 2 * crossing


@pytest.mark.parametrize("world", [2, thorough(3)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("n", [2, 3, thorough(4)])
def test_no_distribution_of_pairs_beats_a_bound(n, mask, direction, world):
    """All distributions of pairs, with contiguous and striped placements of tokens, and with any placement of words."""
    if mask == "documents" and n != 4:
        pytest.skip("the documents take 4 tokens")
    problem = Problem(n, n, 3, 2, mask=MASKS[mask], direction=direction)
    attends = MASKS[mask].to_dense(n, n)
    pairs = int(attends.sum())
    if world**pairs > 1 << 17:
        pytest.skip("too many distributions")
    work = every_distribution(pairs, world)
    rows, keys = used(work, attends)
    a, b = costs(problem)
    share = work.sum(axis=-1)
    balanced = (share <= -(-pairs // world)).all(axis=1)
    for kind in ("contiguous", "striped"):
        held = tokens_of(n, world, kind)
        lacking = a * (rows & ~held).sum(axis=-1) + b * (keys & ~held).sum(axis=-1)
        most, total = least_over(lacking, world)
        for bound in network_bounds(problem, world):
            assert bound.both_words <= most.min(), bound
            assert 2 * bound.words <= total.min(), bound
        for bound in network_bounds(problem, world, work="balanced"):
            assert bound.both_words <= most[balanced].min(), bound
            assert 2 * bound.words <= total[balanced].min(), bound
        for way in range(0, len(work), max(1, len(work) // 64)):
            for bound in network_bounds(problem, world, work=share[way].tolist()):
                assert bound.both_words <= most[way], (bound, share[way])
                assert 2 * bound.words <= total[way], (bound, share[way])
    crossing = a * (rows.sum(axis=1) - rows.any(axis=1)).sum(axis=-1)  # each word's home is a process that uses it
    crossing += b * (keys.sum(axis=1) - keys.any(axis=1)).sum(axis=-1)
    for bound in network_bounds(problem, world, work="balanced", shares="any"):
        assert bound.words <= crossing[balanced].min()
        assert bound.both_words <= -(-2 * crossing[balanced].min() // world)


@pytest.mark.parametrize(("n_q", "n_k", "heads", "kv_heads"), SIZES)
def test_no_distribution_of_heads_rows_and_keys_beats_a_bound(n_q, n_k, heads, kv_heads):
    """Several heads, which share keys in groups: every distribution of the pairs of all heads, or a sample of them."""
    if heads % kv_heads:
        heads = kv_heads
    problem = Problem(n_q, n_k, 2, 2, heads=heads, kv_heads=kv_heads)
    world, group, rng = 2, heads // kv_heads, np.random.default_rng(3)
    pairs = heads * n_q * n_k
    work = every_distribution(pairs, world) if pairs <= 12 else None
    if work is None:
        owner = rng.integers(0, world, (40_000, heads, n_q, n_k))
        whole = np.arange(40_000) % 3  # a third of the samples assigns whole heads, a third whole rows
        owner[whole == 0] = owner[whole == 0][:, :, :1, :1]
        owner[whole == 1] = owner[whole == 1][:, :, :, :1]
        work = np.stack([owner.reshape(len(owner), -1) == rank for rank in range(world)], axis=1)
    grid = work.reshape(len(work), world, heads, n_q, n_k)
    rows, keys = grid.any(axis=-1), grid.reshape(len(work), world, kv_heads, group, n_q, n_k).any(axis=(3, 4))
    a, b = costs(problem)
    lacking = a * (rows & ~tokens_of(n_q, world, "contiguous")[:, None]).sum(axis=(-1, -2))
    lacking += b * (keys & ~tokens_of(n_k, world, "contiguous")[:, None]).sum(axis=(-1, -2))
    most, total = least_over(lacking, world)
    balanced = (work.sum(axis=-1) <= -(-pairs // world)).all(axis=1)
    for kind, ways in (("any", np.ones(len(work), bool)), ("balanced", balanced)):
        for bound in network_bounds(problem, world, work=kind):
            assert bound.both_words <= most[ways].min(), bound
            assert 2 * bound.words <= total[ways].min(), bound


def test_balanced_shares_hold_for_every_choice_of_homes():
    """n = 2, P = 2: every distribution of pairs, and every placement with at most half of the words each."""
    problem, world = Problem(2, 2, 1, 1), 2
    a, b = costs(problem)
    work = every_distribution(4, world)
    rows, keys = used(work, np.ones((2, 2), bool))
    bounds = {kind: network_bounds(problem, world, work=kind, shares="balanced") for kind in ("any", "balanced")}
    balanced = (work.sum(axis=-1) <= 2).all(axis=1)
    tried = 0
    for homes in itertools.product(range(world), repeat=4):
        owner = np.array(homes) == np.arange(world)[:, None]
        if (owner @ np.array([a, a, b, b]) > a + b).any():
            continue
        tried += 1
        lacking = a * (rows & ~owner[:, :2]).sum(axis=-1) + b * (keys & ~owner[:, 2:]).sum(axis=-1)
        most, total = least_over(lacking, world)
        assert all(bound.both_words <= most.min() and 2 * bound.words <= total.min() for bound in bounds["any"])
        assert all(bound.both_words <= most[balanced].min() for bound in bounds["balanced"])
    assert tried == 6


def mesh_words(problem, rows, cols):
    """Sent plus received by each process of a mesh of rows x cols processes, at one head and a full mask."""
    a, b = costs(problem)
    n, world = problem.n_q, rows * cols
    return 2 * (a * (n // rows - n // world) + b * (n // cols - n // world))


@pytest.mark.parametrize("world", [4, 16, 64])
def test_a_square_mesh_meets_the_bound_for_balanced_work(world):
    side = math.isqrt(world)
    forward = Problem(65_536, 65_536, 64)
    words = mesh_words(forward, side, side)
    for name in ("rectangles", "any algorithm"):
        (bound,) = (
            candidate for candidate in network_bounds(forward, world, work="balanced") if candidate.name == name
        )
        assert 0.999 * words < bound.both_words <= words, name
        assert bound.most_words == words // 2
        assert world * bound.most_words <= bound.words * 1.001
    backward = Problem(65_536, 65_536, 64, direction="backward")
    words = mesh_words(backward, side, side)
    assert words / 1.03 < network_bound(backward, world, work="balanced").both_words <= words


@pytest.mark.parametrize("world", [2, 8, 32])
def test_whole_heads_are_within_a_factor_of_the_bound(world):
    """head_parallel with 32 heads: at most (P + 1) / P times the bound."""
    heads, n, d = 32, 65_536, 64
    problem = Problem(n, n, d, heads=heads)
    words = 8 * n * d * (heads // world) * (1 - 1 / world)
    bound = network_bound(problem, world, work="balanced").both_words
    assert words * world / (world + 1.5) < bound <= words


def test_a_window_costs_no_more_than_its_halo_and_at_least_half():
    n, d, world, window = 65_536, 64, 8, 1024
    problem = Problem(n, n, d, mask=Mask.sliding_window(window - 1, 0))
    halo = 2 * d * (window - 1) * (world - 1)  # every process except the first receives them
    bound = network_bound(problem, world, work="balanced")
    assert bound.name == "band"
    assert halo / 2.5 < bound.words <= halo


def test_unbalanced_work_moves_fewer_words_in_all_but_more_on_one_process():
    """A process that gathers everything moves fewer words in all than the bound for balanced work."""
    n, d, world = 4096, 64, 64
    problem = Problem(n, n, d)
    gathered = 4 * n * d * (world - 1) // world  # this process receives q, k and v, and sends o
    balanced, unbalanced = (network_bound(problem, world, work=work) for work in ("balanced", "any"))
    assert unbalanced.words <= gathered < balanced.words
    assert unbalanced.both_words < balanced.both_words
    assert unbalanced.both_words <= gathered


def test_phases_bind_where_memory_is_small():
    n, d, world = 1 << 20, 128, 1024
    problem = Problem(n, n, d)
    share = 4 * n * d // world
    small, large = (network_bounds(problem, world, words) for words in (share, 64 * share))
    assert small[0].name == "phases"
    assert large[0].name != "phases"
    # 4 x^2 words per pair, minus lower-order terms
    assert 0.8 < small[0].both_words / (4 * d**2 / share * n**2 / world) <= 1


def test_phases_allow_a_process_to_begin_with_its_share():
    """Two processes hold their tokens, and exchange their keys piece by piece, in a memory that this needs."""
    n, d = 5984, 64
    share, piece = 4 * n * d // 2, 2244 * 128
    exchanged = 2 * n * d  # each process sends its k and v, and receives the other's
    for work in ("balanced", "any"):
        bounds = network_bounds(Problem(n, n, d), 2, words=share + piece, work=work)
        assert max(bound.both_words for bound in bounds) <= exchanged


def test_phases_deduct_every_output_that_one_process_may_hold():
    """With balanced shares, outputs may have another home than their tokens."""
    problem, words = Problem(2048, 2048, 512), 60_000
    of = {shares: network_bounds(problem, 128, words, shares=shares) for shares in ("tokens", "balanced")}
    tokens, balanced = (next(bound for bound in bounds if bound.name == "phases") for bounds in of.values())
    assert balanced.both_words < tokens.both_words


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("d", "d_v"), [(4, 2), (4, 16), (16, 16)])
def test_phases_have_a_whole_number_of_charges(d, d_v, direction):
    """With homes "any", the crossing words are at most max over whole L of (L (Z/G - P) - O) / 2."""
    problem, memory, world = Problem(64, 64, d, d_v, direction=direction), 128, 64
    outputs = 64 * d_v if direction == "forward" else 64 * (2 * d + d_v)
    most = Fraction(0)
    for row in _texts(direction):
        xi, xi_v, gain = (Fraction(row[name]) for name in ("xi", "xi_v", "gain"))
        reach = math.floor(min(d**2 / xi**2, d_v**2 / xi_v**2))
        if reach > memory:
            most = max(most, (reach - memory) * (64**2 / (gain * reach) - world) - outputs)
    bounds = network_bounds(problem, world, memory, shares="any")
    phases = next(bound for bound in bounds if bound.name == "phases")
    assert phases.words == math.ceil(most / 2)


@examples(60)
@given(problem=problems(), world=st.integers(1, 6), shares=st.sampled_from(["tokens", "balanced", "any"]))
def test_weaker_assumptions_give_weaker_bounds(problem, world, shares):
    bounds = {work: network_bounds(problem, world, 4000, work=work, shares=shares) for work in ("balanced", "any")}
    for strong, weak in zip(*(sorted(own, key=lambda b: b.name) for own in bounds.values()), strict=True):
        assert strong.name == weak.name
        assert 0 <= weak.both_words <= strong.both_words
        assert 0 <= weak.words <= strong.words
        assert world * strong.both_words + world >= 2 * strong.words  # some process has at least the mean
    if world == 1:
        assert all(bound.both_words == bound.words == 0 for bound in bounds["balanced"])


def test_a_curve_is_below_every_mixture_of_its_points():
    """mean_words, a convex function below `words`, is compared with all mixtures of two numbers of pairs."""
    curve = Curve(lambda z: 3 * math.sqrt(z - 4) if z > 4 else 0.0, free=4, pairs=40, streams=3, less=5)
    grid = np.linspace(0, 90, 91)
    for low, high in itertools.combinations(grid, 2):
        mean = (low + high) / 2
        assert curve.mean_words(mean, 90) <= (curve.words(low) + curve.words(high)) / 2 + 1e-9
    assert curve.mean_words(90, 90) == pytest.approx(curve.words(90))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"work": "even"}, "work must be one of balanced, any"),
        ({"work": [1, 2]}, "got 2 numbers that sum to 3"),
        ({"work": [64]}, "got 1 numbers that sum to 64"),
        ({"work": [-1, 65]}, "work must be a whole number"),
        ({"shares": "all"}, "shares must be one of tokens, balanced, any"),
        ({"world_size": 0}, "world_size must be a whole number of at least 1"),
        ({"words": 0}, "words must be a whole number of at least 1"),
        ({"words": 63}, "give at least 64"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(RedblueError, match=words.replace("(", r"\(")):
        network_bounds(Problem(8, 8, 4), **({"world_size": 2} | arguments))


def test_the_gradient_by_x_is_refused():
    with pytest.raises(RedblueError, match="forward and backward"):
        network_bounds(Problem(8, 8, 4, direction="gradient_x"), 2)
