import contextlib
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import (
    Mask,
    NotCovered,
    Problem,
    RedblueError,
    TooFewWords,
    bounds,
    count,
    list_schedules,
    lower_bound,
    lower_bounds,
    schedules,
)
from redblue.bounds import closed, table
from redblue.problem import DIRECTIONS
from support.examples import examples, thorough
from support.spaces import problems

MASKS = [
    Mask.full(),
    thorough(Mask.causal()),
    Mask.sliding_window(3, 2, align="bottom-right"),
    thorough(Mask.sliding_window(16)),
]

GAPS = {"forward": 2.35, "backward": 1.85, "gradient_x": 4.4}  # tiny caches have the largest gaps


def drop_in(direction):
    return [name for name in list_schedules(direction) if schedules.get(name).drop_in]


def assert_below_counts(problem, words):
    """Every proved bound lies below the fewest words of any schedule. Return whether any schedule fits.

    Bounds that do not hold with P given are compared with schedules without P.
    """
    names = list_schedules(problem.direction)
    with_p = [name for name in names if schedules.get(name).takes_p(problem.direction)]
    without, least = (best_count(problem, words, some) for some in ({*names} - {*with_p}, with_p))
    least = min((words_of for words_of in (without, least) if words_of is not None), default=None)
    for bound in lower_bounds(problem, words):
        limit = without if "P is not given" in bound.conditions else least
        assert not bound.proved or limit is None or bound.words <= limit, (problem, words, bound)
    return least is not None


def best_count(problem, words, names):
    counts = []
    for name in names:
        with contextlib.suppress(TooFewWords, NotCovered):
            counts.append(count(name, problem, words=words).words)
    return min(counts, default=None)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("d", [thorough(1), 8, thorough(64), thorough(512)])
def test_every_bound_lies_below_every_count(d, mask, direction):
    compared = 0
    group = 1 if direction == "gradient_x" else 2
    for x, d_v in ((0.1, d), (0.4, max(1, d - 1)), (0.9, 2 * d), (1.5, d), (4, max(1, d // 3)), (10, d)):
        for n_q, n_k in ((1, 1), (7, 7), (1, 300), (300, 5), (64, 64), (2000, 2000)):
            words = max(1, int((d / x) ** 2))
            problem = Problem(n_q, n_k, d, d_v, heads=2, kv_heads=2 // group, mask=mask, direction=direction)
            compared += assert_below_counts(problem, words)
    assert compared >= 10


@examples(150)
@given(problem=st.one_of(problems(), problems("gradient_x")), words=st.integers(1, 400))
def test_every_bound_lies_below_every_count_on_any_mask(problem, words):
    """Odd sizes, groups, windows and block layouts."""
    assert_below_counts(problem, words)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_gap_stays_small(direction):
    """The ratio of the best count to the best bound for n = 16 d, over x = d / sqrt(M). Better bounds must lower it."""
    for d in (32, 128, 1024):
        for x in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 7, 10):
            problem, words = Problem(16 * d, 16 * d, d, direction=direction), int((d / x) ** 2)
            least = best_count(problem, words, drop_in(direction))
            assert least is not None or words < 100
            assert least is None or least <= GAPS[direction] * lower_bound(problem, words).words, (d, x)


def test_compulsory_traffic_is_reached_when_everything_fits():
    problem = Problem(64, 48, 8, 5)
    assert lower_bound(problem, 10**6).name == "compulsory"
    lse = 64
    assert count("flash", problem, words=10**6).words == lower_bound(problem, 10**6).words + lse


def per_pair(direction, x, d=256, n=1 << 22):
    return lower_bound(Problem(n, n, d, direction=direction), int((d / x) ** 2)).words / n**2


def test_forward_is_tight_at_both_ends():
    """4 x^2 for x <= 1/2, as flash moves; 4 x - 1 - o(1) for x -> oo, where small_cache moves 4 x + 1."""
    for x in (0.1, 0.25, 0.5):
        assert 0.99 * 4 * x**2 < per_pair("forward", x) <= 4 * x**2 * (1 + 2 / 256)
    for x in (4, 8, 16):
        assert 4 * x - 2.3 < per_pair("forward", x, d=2048) < 4 * x


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_constants_between_stay_near_the_best_schedules(direction):
    """The ratio at leading order (n >> d, large tiles) is to be 1 at both ends and less than 3 between."""
    best = {
        "forward": lambda x: min(4 * x**2, (1 + x) ** 2, 4 * x + 1) if x > 1 else 4 * x**2,
        "backward": lambda x: (
            min(3 * x**2 + 4 * x + 3, 10 * x + 3) if x > 1 else min(14 * x**2, 9 * x**2 + 2, 5 * x**2 + 5)
        ),
        "gradient_x": lambda x: min(10 * x**2, 7 * x**2 + 2, 2 * x**2 + 4 * x + 3 if x > 1 else 99, 8 * x + 3),
    }[direction]  # fmt: skip
    for x in (0.1, 0.3, 0.6, 0.9, 1.2, 1.6, 2, 3, 5, 10):
        assert best(x) < {"forward": 1.32, "backward": 1.49, "gradient_x": 1.56}[direction] * per_pair(direction, x), x


@pytest.mark.parametrize(("words", "name"), [(1 << 20, "large cache"), (256, "small cache")])
def test_closed_forms_are_as_strong_as_the_certified_one_at_the_ends(words, name):
    words_by_name = {b.name: b.words for b in lower_bounds(Problem(1 << 20, 1 << 20, 256, 192), words)}
    assert words_by_name[name] > 0.97 * words_by_name["phases"]


def test_values_that_are_computed_count_by_their_inputs():
    """In the gradient of X, d words of A3 replace d_v words of V. If d_v > d, the table is read at sqrt(d d_v)."""
    best = 0
    for xi, xi_v, gain in zip(*table.certified("gradient_x"), strict=True):
        reach = math.floor(min((16 / xi) ** 2, (32 / xi_v) ** 2))
        phases = math.ceil((1 << 24) / (gain * max(1, reach)))
        if reach > 900 and phases > 1:
            best = max(best, (reach - 900) * (phases - 1) + 900)
    assert table.phase_loads("gradient_x", 16, 64, 900, 1 << 24) == pytest.approx(best, abs=2)
    wide = Problem(4096, 4096, 16, 64, direction="gradient_x")
    assert lower_bound(wide, 900).words < count("gradient_x_small", wide, words=900).words


def test_larger_dimensions_and_more_pairs_never_lower_a_bound():
    """The look-up in the table of certificates relies on this."""
    for direction in DIRECTIONS:
        ascending = [
            lower_bound(Problem(4096, 4096, d, d_v, direction=direction), 2000).words
            for d, d_v in ((40, 30), (40, 40), (50, 40), (50, 77), (64, 77), (90, 300))
        ]
        assert ascending == sorted(ascending)


def test_fast_arithmetic_has_a_bound_of_its_own():
    """min(x^2, 1) / 4 words per pair, compared with the papers' forms and their conditions."""
    n = 1 << 19
    for x in (0.25, 4):
        rows = {b.name: b for b in lower_bounds(Problem(n, n, 256), int((256 / x) ** 2))}
        assert rows["any arithmetic"].words == pytest.approx(x**2 / (1 + x**2) * n * n, rel=1e-2)
        assert "F_q, q > n" in rows["any arithmetic"].conditions
        assert rows["any arithmetic, Omega"].words == pytest.approx(min(x**2, 1) * n * n, rel=1e-6)
        assert rows["binary entries, Omega"].words == pytest.approx(min(x**2, 1) * n * n / 19**2, rel=1e-6)
        assert not rows["binary entries, Omega"].proved


def test_order_only_rows_are_never_the_bound():
    problem = Problem(4096, 4096, 64)
    rows = lower_bounds(problem, 4096)
    unproved = {b.name for b in rows if not b.proved}
    assert unproved == {"Theta", "sparse", "any arithmetic, Omega", "binary entries, Omega", "approximate, Omega"}
    assert all(b.constant == "not known" for b in rows if not b.proved)
    assert lower_bound(problem, 4096).proved
    theta = next(b for b in rows if b.name == "Theta")
    assert theta.words == 4096**2 * min(64**2 // 4096, 64 / math.sqrt(4096))


def test_order_only_rows_keep_to_their_conditions():
    causal = Problem(4096, 4096, 64, mask=Mask.causal())
    assert "Theta" not in {b.name for b in lower_bounds(causal, 4096)}
    assert "Theta" not in {b.name for b in lower_bounds(Problem(64, 64, 64), 10**6)}


def test_every_row_says_where_it_is_from():
    for row in bounds.BOUNDS:
        assert row.formula
        assert row.conditions
        assert row.source


@pytest.mark.parametrize(("d", "d_v"), [(8, 8), (8, 5), (8, 24)])
def test_the_displayed_formula_of_the_large_cache_is_evaluated(d, d_v, monkeypatch):
    rows = lower_bounds(Problem(64, 64, d, d_v, direction="backward"), 10**4)
    displayed = next(row.formula for row in rows if row.name == "large cache")
    h, c = (re.search(rf"{name} = ([^,]+)", displayed)[1] for name in ("h", "c"))
    u = re.search(r"u = 1 if d_v <= d, else (.+)", displayed)[1]
    sizes = {"d": d, "d_v": d_v}
    sizes["u"] = 1 if d_v <= d else product_of(u, sizes)
    sizes["h"] = product_of(h, sizes)
    monkeypatch.setattr(closed, "_whole_and_crossing", lambda events, square, crossing, reach: (square, crossing))
    square, crossing = closed.large_backward(closed.Sizes(d, d_v, 1, 1, 1), 1)
    assert square == pytest.approx(product_of(c, sizes))
    assert crossing[0] / crossing[1] == pytest.approx(1 / (2 * sizes["h"]))


def product_of(text, sizes):
    """Evaluate a formula in which a space between two factors multiplies them."""
    return eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text), dict(sizes))


def test_streams_add_up():
    one_stream = lower_bound(Problem(256, 256, 16), 64).words
    assert lower_bound(Problem(256, 256, 16, heads=3, batch=2), 64).words == 6 * one_stream


@pytest.mark.parametrize("words", [0, -5, 1.5, True])
def test_bad_capacities_are_refused(words):
    with pytest.raises(RedblueError, match="words must be a whole number of at least 1"):
        lower_bound(Problem(4, 4, 4), words)
