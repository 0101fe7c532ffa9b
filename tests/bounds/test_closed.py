"""The closed forms of bounds, compared with a second implementation, with sets of words, and in limits."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, lower_bound, lower_bounds
from redblue.bounds import closed, formulas
from redblue.bounds.closed import Sizes
from redblue.problem import DIRECTIONS
from support.examples import examples, thorough

# A second implementation of the theorems, in floating point ---------------------------------------


def weight_of_o(d, d_v):
    """A whole number below d (sqrt(d) + sqrt(d_v))^2; Theorem 7 allows any such weight."""
    return d * (d + d_v + 2 * math.isqrt(d * d_v))


def gain(direction, d, d_v, w):
    """The whole and crossing pairs of a phase of w words by Theorem 7, maximised over t on a fine grid."""
    t = np.linspace(0, w, 2001)
    if direction == "backward":
        weight = 1 if d_v <= d else 2 * d / (d + d_v)  # of a step of dV
        steps = 2 * d + weight * d_v
        whole, crossing = (w - t) ** 2 / (8 * (d + d_v)) / steps, np.sqrt(t) * (w - t) / 2 / steps
    else:
        if d_v <= d:
            a, b = (d + d_v) ** 2, (d + d_v) * (2 * d + d_v)
        else:
            a, b = weight_of_o(d, d_v), 2 * d * (2 * d + d_v)
        factor = max(a / (d_v if d_v <= d else math.sqrt(d * d_v)), b / d)
        whole, crossing = (w - t) ** 2 / 4 / (a + b), np.sqrt(t) * (w - t) / 2 * factor / (a + b)
    return (whole + np.minimum(t, crossing)).max()


def phases(kind, direction, s, w):
    """The number of phases, without rounding."""
    d, d_v, z = s.d, s.d_v, s.pairs
    if kind == "large":
        if direction == "forward":
            delta2 = (d + d_v) ** 2 if d_v <= d else 4 * d * d_v
            return z / max(w * w / 4 / delta2, (math.sqrt(w + d_v**2) - d_v) ** 2) if w >= 3 * d_v**2 else 0
        if direction == "gradient_x":
            share = 1 / (1 + 1.5) if d == d_v else None
            a = (d + d_v) ** 2 if d_v <= d else weight_of_o(d, d_v)
            b = (d + d_v) * (2 * d + d_v) if d_v <= d else 2 * d * (2 * d + d_v)
            assert share is None or a / (a + b) == pytest.approx(share)
            z = max(0, z - a / (a + b) * s.rows * min(s.keys, w // d))
        return z / gain(direction, d, d_v, w)
    least = d if direction == "forward" else min(d, d_v)
    values = math.sqrt(d * d_v) if direction == "gradient_x" and d_v > d else d_v
    steps = {
        "forward": d + d_v,
        "backward": 2 * d + 2 * d_v,
        "not given": 2 * d_v + 1.5 * math.sqrt(3) * d,
        "gradient_x": 2 * d + 2 * values,
    }[direction]
    return z * steps / ((w + w * w / 4 / least**2) / 3) ** 1.5


EVALUATED = [
    ("large", "forward", closed.large_forward),
    ("large", "backward", closed.large_backward),
    ("large", "gradient_x", closed.large_gradient_x),
    ("small", "forward", closed.small_forward),
    ("small", "backward", closed.small_backward),
    ("small", "not given", closed.small_recomputed),
    ("small", "gradient_x", closed.small_gradient_x),
]


@pytest.mark.parametrize(("kind", "direction", "evaluate"), EVALUATED)
@examples(60)
@given(data=st.data())
def test_phases_are_those_of_the_theorems(kind, direction, evaluate, data):
    """Never more than the exact number, rounded up.

    The grid over t loses a few per cent, and more for very few words.
    """
    d, d_v = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    rows, keys = data.draw(st.integers(1, 10**5)), data.draw(st.integers(1, 10**5))
    s = Sizes(d, d_v, rows * keys // data.draw(st.integers(1, 3)), rows, keys)
    w = data.draw(st.integers(1, 10**6))
    exact, upper = phases(kind, direction, s, w), evaluate(s, w)
    assert upper <= math.ceil(exact * (1 + 1e-6))
    if w >= 2000 and min(d, d_v) >= 10:
        assert upper >= math.floor(exact * 0.85) - 1


def test_the_first_phase_is_longer_because_the_cache_starts_empty():
    """Of p phases, the first one charges M + L, the next p - 2 charge L each, and the last one nothing."""
    assert closed.best(100, lambda w: 1) == 0
    assert closed.best(100, lambda w: 5 if w == 200 else 0) == 100 * 4 + 100
    assert closed.best(100, lambda w: 5 if w == 300 else 0, split=True) == 100 * 4 + 100
    assert closed.best(100, lambda w: 2 if w == 107 else 0, lengths=(7,)) == 7 + 100


# Sets of words ------------------------------------------------------------------------------------


def steps_of_a_phase(direction, sets):
    """Count the products that sets of words allow, named as in Theorem 6.

    sets: boolean arrays, q, k, dout, v, rows x or keys x features; g: dQ or J; dk, o: O or dV; s, p: pairs that begin
    or cross on the side of the scores, and of dP.
    """
    q, k, c, v = (sets[name].astype(int) for name in ("q", "k", "c", "v"))
    s, p = sets["s"], sets["p"]
    whole_s = np.outer(sets["q"].all(axis=1), sets["k"].all(axis=1))
    whole_p = np.outer(sets["c"].all(axis=1), sets["v"].all(axis=1))
    has_p, has_ds = s | whole_s, p | (whole_p & (s | whole_s))
    steps = {"s": (s * (q @ k.T)).sum(), "p": (p * (c @ v.T)).sum()}
    g, o = sets["g"].astype(int), sets["o"].astype(int)
    steps["g"] = (has_ds * (g @ k.T)).sum()
    if direction == "gradient_x":
        steps["o"] = (has_p * (o @ v.T)).sum()
    else:
        steps["o"] = (has_p * (c @ o.T)).sum()  # dV
        steps["dk"] = (has_ds * (q @ sets["dk"].astype(int).T)).sum()
    return steps, (has_p | has_ds).sum()


def weighted(direction, steps):
    if direction == "not given":
        return math.sqrt(3) / 2 * (steps["s"] + steps["g"] + steps["dk"]) + steps["p"] + steps["o"]
    return sum(steps.values()) - (steps["s"] if direction == "backward" else 0)


@pytest.mark.parametrize("direction", ["backward", "not given", "gradient_x"])
@pytest.mark.parametrize(("n", "d", "d_v"), [thorough(3, 8, 8), (4, 9, 6), (3, 6, 9), thorough(2, 20, 20), (3, 4, 4)])
def test_no_set_of_words_makes_more_products_than_theorem_6_says(direction, n, d, d_v):
    """Hill climbing from random sets of words, towards the largest share of the bound."""
    rng, sizes = np.random.default_rng(7), {"q": d, "k": d, "c": d_v, "v": d_v, "g": d, "s": n, "p": n}
    sizes |= {"o": d_v} | ({} if direction == "gradient_x" else {"dk": d})
    if direction == "gradient_x" and d_v > d:
        pytest.skip("V is computed, so its words are counted by those of A3")

    def share(sets):
        words = sum(int(chosen.sum()) for chosen in sets.values())
        limit = ((words + words**2 / 4 / min(d, d_v) ** 2) / 3) ** 1.5
        return weighted(direction, steps_of_a_phase(direction, sets)[0]) / max(limit, 1e-9)

    best = 0.0
    for _ in range(6):
        sets = {name: rng.random((n, size)) < rng.random() for name, size in sizes.items()}
        value = share(sets)
        for _ in range(400):
            name = rng.choice([*sizes])
            index = tuple(rng.integers(0, side) for side in sets[name].shape)
            sets[name][index] ^= True
            after = share(sets)
            if after >= value:
                value = after
            else:
                sets[name][index] ^= True
        best = max(best, value)
    assert 0.2 < best <= 1 + 1e-9


def whole_steps(direction, sets, d, d_v):
    """Return the weighted steps of whole pairs as a share of Theorem 7's maximum for these words. No pair crosses."""
    q, k, c, v = (sets[name] for name in ("q", "k", "c", "v"))
    rows_s, keys_s = q.all(axis=1), k.all(axis=1)
    rows, keys = rows_s & c.all(axis=1), keys_s & v.all(axis=1)
    words = sum(int(chosen.sum()) for chosen in sets.values())
    both, scores = np.outer(rows, keys), np.outer(rows_s, keys_s)
    g = (both * (sets["g"].astype(int).sum(axis=1)[:, None])).sum()
    if direction == "backward":
        dk = (both * (sets["dk"].astype(int).sum(axis=1)[None])).sum()
        dv = (scores * (c.astype(int) @ sets["o"].astype(int).T)).sum()
        weight = 1 if d_v <= d else 2 * d / (d + d_v)
        return (g + dk + weight * dv) * 8 * (d + d_v) / max(1, words) ** 2
    unfinished = scores & ~rows[:, None]  # rows with whole dS have already finished their words of O
    o = (unfinished * (sets["o"].astype(int) @ v.astype(int).T)).sum()
    a, b = (d + d_v) ** 2, (d + d_v) * (2 * d + d_v)
    return (a / d_v * o + b / d * g) * 4 / max(1, words) ** 2


@pytest.mark.parametrize("direction", ["backward", "gradient_x"])
@pytest.mark.parametrize(("n", "d", "d_v"), [(6, 1, 1), thorough(5, 2, 2), (5, 3, 1), thorough(5, 1, 2), (4, 2, 3)])
def test_no_set_of_words_makes_more_whole_steps_than_theorem_7_says(direction, n, d, d_v):
    if direction == "gradient_x" and d_v > d:
        pytest.skip("V is computed, so its words are counted by those of A3")
    rng, sizes, best = np.random.default_rng(3), {"q": d, "k": d, "c": d_v, "v": d_v, "g": d, "o": d_v}, 0.0
    sizes |= {"dk": d} if direction == "backward" else {}
    for _ in range(25):
        full = {name: rng.random() < 0.8 for name in sizes}  # whole rows and keys, which single words never complete
        rows, keys = rng.random(n) < rng.random(), rng.random(n) < rng.random()
        side = {
            name: keys if name in ("k", "v", "dk") or (name, direction) == ("o", "backward") else rows for name in sizes
        }
        sets = {name: np.repeat(side[name][:, None] & full[name], size, axis=1) for name, size in sizes.items()}
        value = whole_steps(direction, sets, d, d_v)
        for _ in range(300):
            name = rng.choice([*sizes])
            index = (int(rng.integers(0, n)), slice(None) if rng.random() < 0.5 else int(rng.integers(0, sizes[name])))
            before = sets[name][index].copy()
            sets[name][index] = not np.all(before)
            after = whole_steps(direction, sets, d, d_v)
            if after >= value:
                value = after
            else:
                sets[name][index] = before
        best = max(best, value)
    assert 0.5 < best <= 1 + 1e-9


# Limits, and which rows of the table of bounds apply ----------------------------------------------


def per_pair(direction, x, d=2048, n=1 << 24, **which):
    return lower_bound(Problem(n, n, d, direction=direction), int((d / x) ** 2), **which).words / n**2


def test_large_cache_limits():
    """4, 12 and 10 x^2 words per pair at d = d_v."""
    for direction, constant in (("forward", 4), ("backward", 12), ("gradient_x", 10)):
        assert 0.98 * constant < per_pair(direction, 0.08) / 0.08**2 <= constant * 1.002


def test_small_cache_limits():
    """As x -> oo: 4 x - 1, (4 + 3 sqrt 3) x - 2 (with P given: 8 x - 1), and 8 x - 2 words per pair."""
    x, d = 60, 1 << 14
    slack = 1 + 3 / 4 / x**2
    for direction, form, which in (
        ("forward", 4 * x * slack**-1.5 - 1, {}),
        ("backward", (4 + 3 * 3**0.5) * x * slack**-1.5 - 2, {}),
        ("backward", 8 * x * slack**-1.5 - 1, {"p_given": True}),
        ("gradient_x", 8 * x * slack**-1.5 - 2, {}),
    ):
        assert per_pair(direction, x, d, **which) == pytest.approx(form, rel=1e-3)


def test_sums_in_any_order_have_bounds_of_their_own():
    """Forward: 2 x^2 for large caches and 2 sqrt 2 x for small ones, 0.5 and 0.7 times the bounds for chains."""
    assert per_pair("forward", 0.05, split_sums=True) / 0.05**2 == pytest.approx(2, rel=0.01)
    assert per_pair("forward", 60, 1 << 14, split_sums=True) / 60 == pytest.approx(2 * 2**0.5, rel=0.01)
    decoding = Problem(1, 4096, 64, heads=32, kv_heads=8)
    assert lower_bound(decoding, 4096, split_sums=True).words > 0
    for direction in DIRECTIONS:
        problem = Problem(4096, 4096, 64, direction=direction)
        anything = {b.name for b in lower_bounds(problem, 100, split_sums=True) if b.proved}
        assert {"compulsory", "large cache, any order", "small cache, any order"} <= anything
        assert not anything & {"phases", "large cache", "small cache", "one mask"}


def test_a_pass_that_reads_p_has_fewer_bounds():
    problem = Problem(4096, 4096, 64, direction="backward")
    names = [{b.name for b in lower_bounds(problem, 100, p_given=reads_p)} for reads_p in (False, True)]
    assert names[0] - names[1] == {
        "small cache, P not given",
        "small cache, P not given, any order",
        "phases with stores",
    }
    assert lower_bound(problem, 100, p_given=True).words < lower_bound(problem, 100).words


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_to_do_has_bound_0(direction):
    problem = Problem(8, 8, 2, mask=~Mask.full(), direction=direction)
    assert formulas.large_cache(problem, 10) <= 0 or direction == "gradient_x"
    assert lower_bounds(problem, 10)[0].name == "compulsory"


@pytest.mark.parametrize(("prime", "rows", "keys", "d"), [(5, 3, 3, 1), (7, 3, 2, 1), (5, 2, 2, 2)])
def test_products_take_more_values_than_fewer_words_than_theorem_4_requires(prime, rows, keys, d):
    """Over all Q and K, z scores take more values than W - 1 words can, where W is the least number with N(W) >= z."""
    words = np.array([*product(range(prime), repeat=(rows + keys) * d)])
    q, k = words[:, : rows * d].reshape(-1, rows, d), words[:, rows * d :].reshape(-1, keys, d)
    scores = (q @ k.transpose(0, 2, 1) % prime).reshape(len(words), -1)
    for chosen in product([0, 1], repeat=rows * keys):
        powers = prime ** np.cumsum(chosen) * chosen  # one number for each value of the chosen scores
        values = len(np.unique(scores @ powers))
        least = next(reach for reach in range(sum(chosen) + 1) if closed.determined(reach, d) >= sum(chosen))
        assert values > prime ** (least - 1)
