"""Counts of several streams that share one capacity."""

import pytest

from redblue import Mask, Problem, RedblueError, TooFewWords, count, lower_bound
from redblue.lab import counts


def test_heads_at_once_share_the_cache():
    problem = Problem(64, 64, 8, heads=4, mask=Mask.causal())
    together = count("flash", problem, words=2048, at_once=4)
    alone = count("flash", problem, words=512)
    assert (together.words, together.tiles) == (alone.words, alone.tiles)
    assert together.peak == 4 * alone.peak <= 2048
    ran = counts.run("flash", problem, words=2048, at_once=4)
    assert (ran.reads, ran.writes, ran.flops) == (together.reads, together.writes, together.flops)
    assert ran.peak <= together.peak


@pytest.mark.parametrize(
    ("schedule", "direction", "x", "constant"),
    [
        ("flash", "forward", 0.25, lambda x: 4 * x**2),
        ("hybrid", "forward", 0.6, lambda x: (1 + x) ** 2),
        ("small_cache", "forward", 2, lambda x: 4 * x + 1),
        ("flash", "backward", 0.25, lambda x: 14 * x**2),
        ("small_cache", "backward", 2, lambda x: 10 * x + 3),
    ],
)
def test_which_constants_change(schedule, direction, x, constant):
    """With H heads at once, sqrt(H) x replaces x: 4 H x^2, (1 + sqrt(H) x)^2, 4 sqrt(H) x + 1 ..."""
    n, d, heads = 1 << 20, 1024, 4
    problem = Problem(n, n, d, heads=heads, direction=direction)
    counted = count(schedule, problem, words=int((d / x) ** 2), at_once=heads)
    assert counted.words / (heads * n**2) == pytest.approx(constant(heads**0.5 * x), rel=0.04)


def test_one_after_another_is_never_worse_and_the_bound_holds_for_both():
    problem = Problem(512, 512, 32, heads=8)
    words = [count("small_cache", problem, words=4096, at_once=h).words for h in (1, 2, 4, 8)]
    assert words == sorted(words)
    assert lower_bound(problem, 4096).words <= words[0]


@pytest.mark.parametrize(
    ("at_once", "says"),
    [
        (0, "at_once must be a whole number of at least 1, got 0"),
        (1.5, "at_once must be"),
        (3, r"at_once \(3\) must be at most the problem's streams \(2"),
    ],
)
def test_bad_numbers_of_streams_are_refused(at_once, says):
    with pytest.raises(RedblueError, match=says):
        count("flash", Problem(8, 8, 4, heads=4, kv_heads=2), words=400, at_once=at_once)


def test_a_share_that_is_too_small_says_so():
    with pytest.raises(TooFewWords, match="at least"):
        count("flash", Problem(8, 8, 4, heads=8), words=64, at_once=8)
    with pytest.raises(TooFewWords, match="got 100"):
        count("flash", Problem(8, 8, 4, heads=2), words=200, tiles={"rows": 8, "cols": 8}, at_once=2)
