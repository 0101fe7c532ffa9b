"""The bound of one mask: below every count, above the gains of its phases, and sometimes better than other bounds."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, NotCovered, Problem, RedblueError, TooFewWords, count, list_schedules, lower_bounds
from redblue.bounds import one_mask
from redblue.bounds.cover import Cover, cover, exact, steps_of, upper
from redblue.bounds.family import family
from redblue.bounds.one_mask import Task, candidates, loads, max_earned
from redblue.bounds.phases import Weights
from redblue.bounds.table import rows
from support.examples import examples, thorough
from support.mask_oracle import compositions
from support.spaces import plane

DIRECTIONS = ["forward", "backward"]


def fewest(problem, words):
    counts = []
    for name in list_schedules(problem.direction):
        with contextlib.suppress(TooFewWords, NotCovered):
            counts.append(count(name, problem, words=words).words)
    return min(counts, default=None)


def proved(problem, words):
    return {bound.name: bound.words for bound in lower_bounds(problem, words, p_given=True) if bound.proved}


@examples(25)
@given(st.data(), st.sampled_from(DIRECTIONS), st.integers(20, 300))
def test_the_bound_lies_below_every_count(data, direction, words):
    n_q, n_k = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 24))
    mask, _ = data.draw(compositions(n_q, n_k))
    d, d_v, group = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 2))
    problem = Problem(n_q, n_k, d, d_v, heads=group, kv_heads=1, mask=mask, direction=direction)
    least = fewest(problem, words)
    if least is not None:
        assert all(bound <= least for bound in proved(problem, words).values())


@pytest.mark.parametrize("direction", ["forward", thorough("backward")])
def test_the_bound_lies_below_every_count_of_larger_masks(direction):
    masks = [plane(7), Mask.sliding_window(6, 5), Mask.bigbird(4), Mask.butterfly(3), Mask.dilated(3, 7)]
    compared = 0
    for mask in masks:
        for words in (100, 300, 900):
            problem = Problem(49, 49, 4, 5, mask=mask, direction=direction)
            least = fewest(problem, words)
            if least is not None:
                compared += proved(problem, words)["one mask"] > 0
                assert max(proved(problem, words).values()) <= least
    assert compared >= 10


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_cover_that_is_too_small_is_found(direction):
    """With an eighth of the pairs that rows and columns really cover, the bound rises above the counts of schedules."""
    problem, words = Problem(49, 49, 2, mask=plane(7), direction=direction), 200
    pairs = problem.mask.on(49, 49)
    real = cover(pairs)
    cheat = Cover(real.sizes, np.maximum(real.pairs / 8, real.pairs > 0))
    assert loads(real, direction, 2, 2, words, pairs.nnz) <= fewest(problem, words)
    assert loads(cheat, direction, 2, 2, words, pairs.nnz) > fewest(problem, words)


@examples(60)
@given(st.data(), st.sampled_from(DIRECTIONS), st.integers(4, 200))
def test_exact_covers_say_no_less(data, direction, words):
    """The quick cover is larger, so its bound is smaller, up to the tolerance of both."""
    n_q, n_k = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 14))
    mask, attends = data.draw(compositions(n_q, n_k))
    if not attends.any():
        return
    known, quick = steps_of(exact(attends)), upper(mask.on(n_q, n_k))
    for weights in candidates(direction, 2, 3, 2 * words):
        task = Task(direction, 2, 3, 2 * words, weights)
        assert max_earned(known, task) <= max_earned(quick, task) * (1 + one_mask.GAP) * (1 + 1e-6)


def earned(kappa, task, words, pairs):
    """The gain that Theorem 5 (docs/lab/theory.md) allows a phase with this distribution of words, by products.

    words: the words of Q (a_s), K (b_s), dO (a_d), V (b_d) and of three output arrays, then t_s and t_d. pairs:
    the number of pairs whose scores the phase works on.
    """
    d, d_v, w = task.d, task.d_v, task.weights
    a_s, b_s, a_d, b_d, x, y, z, t_s, t_d = words

    def products(r, c, e, size):
        """The most products with factors of r and c words, equal for all features, in e pairs."""
        r, c = min(int(r / size), kappa.shape[0] - 1), min(int(c / size), kappa.shape[1] - 1)
        return min(e, kappa[r, c])

    whole, whole_dp = products(a_s, b_s, math.inf, d), products(a_d, b_d, math.inf, d_v)
    e = max(pairs, t_d if task.direction == "backward" else t_s)
    if task.direction == "forward":  # b_d: V, x: O
        gain = w.scores * products(a_s, b_s, e, d) - w.scores_start * (e - t_s)
        return gain + w.p * products(x, b_d, whole + t_s, d_v)
    gain = w.dp * products(a_d, b_d, e, d_v) - w.dp_start * (e - t_d) + w.p * products(a_d, x, whole + t_s, d_v)
    from_ds = min(whole, whole_dp) + t_s + t_d
    return gain + w.ds * (products(y, b_s, from_ds, d) + products(a_s, z, from_ds, d))


@examples(60)
@given(st.data(), st.sampled_from(DIRECTIONS), st.integers(8, 120))
def test_no_phase_earns_more_than_is_proved(data, direction, words):
    n_q, n_k = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9))
    _, attends = data.draw(compositions(n_q, n_k))
    if not attends.any():
        return
    kappa, rng = exact(attends), np.random.default_rng(data.draw(st.integers(0, 99)))
    for weights in candidates(direction, 2, 3, words):
        task = Task(direction, 2, 3, words, weights)
        most = max_earned(steps_of(kappa), task)
        for spent in rng.dirichlet(np.full(9, 0.4), 60) * words:
            assert earned(kappa, task, spent, rng.integers(0, attends.sum() + 1)) <= most


@pytest.mark.parametrize(
    ("direction", "xi", "ratio"),
    [("forward", 0.2, 1.07), ("forward", 1, 1.07), ("forward", 3, 1.07), ("backward", 0.2, 1.8), ("backward", 3, 1.35)],
)
def test_without_a_mask_it_is_the_phase_problem(direction, xi, ratio):
    """With K(u) = u^2 / 4, the bound equals that of the certified table; forward up to the tolerances of both."""
    u = np.unique(np.geomspace(1, 1 << 14, 4000).astype(int))
    dense = Cover(u, u**2 // 4.0)
    alike = [row for row in rows(direction) if row["xi"] == row["xi_v"]]
    nearest = min(alike, key=lambda row: abs(row["xi"] / xi - 1))
    words, most = int((64 / nearest["xi"]) ** 2), nearest["gain"]
    least = min(max_earned(dense, Task(direction, 64, 64, words, w)) for w in candidates(direction, 64, 64, words))
    assert 0.99 * most * words <= least <= ratio * most * words


def test_weights_are_one_pair_in_all():
    for direction in DIRECTIONS:
        for d, d_v in ((4, 4), (3, 8), (64, 16)):
            for weights in candidates(direction, d, d_v, 1000):
                assert weights.total(direction) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("total", [0.5, 4])
def test_a_pair_earns_the_total_of_its_weights(direction, total, monkeypatch):
    """Scaling all weights by 4 changes nothing. A bound that counts each pair as 1 would be off by a factor of 4."""
    pairs = plane(7).on(49, 49)
    expected = loads(cover(pairs), direction, 3, 2, 100, pairs.nnz)
    scaled = {row: [Weights(*(total * w for w in weights)) for weights in candidates(direction, 3, 2, row)]
              for row in range(100, 2000, 50)}  # fmt: skip
    monkeypatch.setattr(one_mask, "candidates", lambda direction, d, d_v, words: scaled[words])
    assert expected > 0
    assert loads(cover(pairs), direction, 3, 2, 100, pairs.nnz) == pytest.approx(expected, rel=1e-9)


def test_rounded_weights_of_the_table_do_not_raise_the_bound():
    """For phases of 16 M the weights add up to 0.999966.

    The bound was too large (188,400,640) when their sum counted as 1.
    """
    problem = Problem(10**6, 10**6, 36, 32, mask=Mask.sliding_window(4, 4), direction="backward")
    pairs = problem.mask.on(10**6, 10**6)
    assert loads(cover(pairs), "backward", 36, 32, 1024, pairs.nnz) <= 188_384_256


@pytest.mark.parametrize(
    ("n", "d", "words"), [(2**27, 4, 64), (2**30, 1, 12), (2**36, 128, 116_224), (2**50, 64, 9999)]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_bound_lies_below_the_counts_of_very_long_sequences(n, d, words, direction):
    for mask in (Mask.causal(), Mask.sliding_window(n // 3)):
        problem = Problem(n, n, d, mask=mask, direction=direction)
        assert max(proved(problem, words).values()) <= count("flash", problem, words=words).words


@pytest.mark.parametrize(("d", "words", "factor"), [(64, 256, 1.75), (64, 1024, 2.1), (16, 256, 1.9)])
def test_scattered_masks_need_more_than_their_pairs_and_inputs_say(d, words, factor):
    """Lines and points of a plane: two rows share at most one key, so tiles save little."""
    for direction in DIRECTIONS:
        words_by_bound = proved(Problem(31 * 31, 31 * 31, d, mask=plane(31), direction=direction), words)
        others = max(bound for name, bound in words_by_bound.items() if name != "one mask")
        assert words_by_bound["one mask"] > (factor if direction == "forward" else 1.5) * others


def test_dense_and_full_masks_have_no_bound_of_their_own():
    assert "one mask" not in proved(Problem(64, 64, 8), 100)
    assert proved(Problem(512, 512, 8, mask=Mask.causal()), 100)["one mask"] == 0
    assert proved(Problem(8, 8, 2, mask=~Mask.full()), 10)["one mask"] == 0


# The family's bound -------------------------------------------------------------------------------


def test_the_family_of_a_dense_mask_is_the_papers():
    """Z_input^2 / Z_QK is d^2, up to a constant for counting Q, K and V."""
    dense_family = family(Problem(512, 512, 16, heads=4, batch=2))
    assert (dense_family.z_input, dense_family.z_qk) == (3 * 512 * 16, 512**2)
    assert dense_family.dividing_words == 9 * 16**2
    assert dense_family.form(100) == min(
        dense_family.z_input**2 // 100, math.isqrt(dense_family.z_input**2 * dense_family.z_qk // 100)
    )
    assert family(Problem(8, 8, 2, mask=~Mask.full())).dividing_words == math.inf


@pytest.mark.parametrize(
    ("mask", "words", "below"),
    [
        (Mask.sliding_window(256, 255), 65536, 7),
        (Mask.documents([512] * 128), 65536, 8),
        (Mask.blocks(np.eye(512, dtype=bool), 128), 65536, 4),
    ],
    ids=repr,
)
def test_structured_masks_move_less_than_the_form_of_their_family(mask, words, below):
    """Its authors bound a family of masks, not a single one (docs/lab/theory.md, 'Sparse attention')."""
    problem = Problem(65536, 65536, 64, mask=mask)
    moved = count("flash", problem, words=words).words
    assert moved * below < family(problem).form(words)
    assert max(proved(problem, words).values()) <= moved


def test_bad_capacities_are_refused():
    with pytest.raises(RedblueError, match="words must be a whole number"):
        lower_bounds(Problem(8, 8, 2, mask=Mask.causal()), 0)
