"""The search finds the fewest words: compared with trying every tile."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, TooFewWords, count, schedules
from redblue.base.integers import ceil_div
from redblue.schedules import schedule as schedule_module
from support.examples import examples, thorough
from support.spaces import PASSES, covered, masks, problems

PRINTED = ("flash1", "saha_ye")  # tiles are fixed by their papers, not searched
ATTENTION = [p for p in PASSES if p.values[1] != "gradient_x"]
EVERY_PASS = pytest.mark.parametrize(("schedule", "direction"), ATTENTION)
SEARCHED = pytest.mark.parametrize(("schedule", "direction"), [p for p in ATTENTION if p.values[0].name not in PRINTED])


def phases(schedule, edges):
    """Groups of edges whose words add up independently of the other groups'."""
    if schedule.name in ("hybrid", "small_cache") and "out_rows" in edges:
        return [[e for e in edges if e not in ("depth", "span")]]  # phases depend on each other's tiles
    if "keep" in edges:
        return [edges]
    pairs = [("rows", "cols"), ("out_rows", "out_cols"), ("dkv_rows", "dkv_cols"), ("softmax_cols",)]
    pairs += [(f"{g}_rows", f"{g}_cols") for g in ("dq", "dk", "dv")]
    return [[e for e in pair if e in edges] for pair in pairs if set(pair) & set(edges)]


def fewest_words(schedule, problem, words):
    stream, one_pass = problem.one_stream(), schedule.direction(problem)
    kept = {"keep": stream.n_k if problem.direction == "forward" else stream.n_q}
    features = kept | {"out_cols": stream.d_v, "dv_cols": stream.d_v, "dq_cols": stream.d, "dk_cols": stream.d}
    keys = ("cols", "dkv_cols", "softmax_cols", "dk_rows", "dv_rows")
    best = {e: {"chunk": stream.n_q, "span": stream.n_k, "cluster": 2}.get(e, 1) for e in one_pass.edges}

    def cost(edges):
        return one_pass.cost(stream, one_pass.tile_type(**edges))

    if cost(best).peak > words:
        return None
    for group in phases(schedule, one_pass.edges):
        lengths = [features.get(e) or (stream.n_k if e in keys else stream.n_q) for e in group]
        tried = (
            best | dict(zip(group, t, strict=True)) for t in itertools.product(*(range(1, x + 1) for x in lengths))
        )
        fitting = [(c.words, edges) for edges in tried if (c := cost(edges)).peak <= words]
        best = min(fitting, key=lambda candidate: candidate[0])[1]
    return cost(best).words


@SEARCHED
@examples(10)
@given(data=st.data())
def test_search_equals_trying_every_tile(schedule, direction, data):
    problem, words = data.draw(covered(schedule, direction)), data.draw(st.integers(5, 120))
    n_q, n_k = min(problem.n_q, 6), min(problem.n_k, 6)
    small = problem.__class__(
        n_q, n_k, min(problem.d, 3), min(problem.d_v, 4),
        mask=problem.mask.resized((problem.n_q, problem.n_k), (n_q, n_k)), direction=problem.direction,
    )  # fmt: skip
    expected = fewest_words(schedule, small, words)
    if expected is None:
        with pytest.raises(TooFewWords):
            schedule.tiles(small, words)
    else:
        assert schedule.words(small, schedule.tiles(small, words)) == expected


@pytest.mark.parametrize("words", [70, 300, 900])
@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("flash", "forward"),
        thorough("small_cache", "forward"),  # the most edges to try
        ("flash_onepass", "backward"),
        ("spilled_ds", "backward"),
        ("hybrid", "backward"),
    ],
)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=repr)
def test_search_equals_trying_every_tile_of_a_larger_problem(name, direction, mask, words):
    problem = Problem(23, 18, 6, 3, mask=mask, direction=direction)
    schedule = schedules.get(name)
    assert schedule.words(problem, schedule.tiles(problem, words)) == fewest_words(schedule, problem, words)


@pytest.mark.thorough
@examples(200)
@given(sizes=st.tuples(*4 * [st.integers(1, 20)]), words=st.integers(1, 400), backward=st.booleans())
def test_flash1_takes_the_printed_sizes_of_the_largest_cache_that_fits(sizes, words, backward):
    problem = Problem(*sizes, direction="backward" if backward else "forward")
    schedule, fitting = schedules.get("flash1"), {}
    for m in range(1, words + 1):
        largest = ceil_div(m, 2 * (problem.d + problem.d_v))
        edges = {"rows": min(largest, problem.d), "cols": largest}
        cost = schedule.cost(problem, schedule.make_tiles(problem, edges))
        if cost.peak <= words:
            fitting[m] = cost
    if fitting:
        assert schedule.cost(problem, schedule.tiles(problem, words)) == fitting[max(fitting)]
    else:
        with pytest.raises(TooFewWords):
            schedule.tiles(problem, words)


@pytest.mark.parametrize(("words", "side"), [(4, 1), (15, 1), (16, 2), (99, 4), (100, 5), (10**6, 20)])
def test_saha_ye_takes_the_printed_side(words, side):
    """floor(sqrt(M / 4)), or the longest axis."""
    assert schedules.get("saha_ye").tiles(Problem(20, 20, 20), words) == (side,)


@EVERY_PASS
@examples(25)
@given(data=st.data())
def test_multiples_are_kept_unless_the_array_ends(schedule, direction, data):
    problem, step = data.draw(covered(schedule, direction)), data.draw(st.integers(1, 5))
    edges = schedule.direction(problem).edges
    tiles = schedule.tiles(problem, 4000, dict.fromkeys(edges, step))._asdict()
    stream = problem.one_stream()
    ends = {stream.n_q, stream.n_k, stream.d, stream.d_v}
    assert all(length % step == 0 or length in ends for length in tiles.values())


@EVERY_PASS
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(300)], ids=repr)
def test_more_cache_never_costs_more_words(schedule, direction, mask):
    if schedule.full_only and not mask.is_full:
        return
    problem = Problem(1024, 1024, 64, mask=mask, direction=direction)
    words = [count(schedule.name, problem, words=2**k).words for k in range(10, 24)]
    assert words == sorted(words, reverse=True)


@EVERY_PASS
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(1000)], ids=repr)
@pytest.mark.parametrize("n", [10**9, 2**50])
def test_any_length_is_searched_and_counted(schedule, direction, mask, n):
    """Words per attended pair do not depend on the length, except for effects of the ends."""
    if not mask.is_full and (schedule.full_only or schedule.name == "standard"):
        return  # `standard` moves all n^2 probabilities, whatever the window
    short, long = (Problem(x, x, 64, heads=2, kv_heads=1, mask=mask, direction=direction) for x in (2**21, n))
    per_pair = [count(schedule.name, p, words=20_000).words / p.mask.on(p.n_q, p.n_k).nnz for p in (short, long)]
    assert per_pair[1] == pytest.approx(per_pair[0], rel=2e-3)


def test_a_long_problem_that_cannot_be_shortened_is_refused():
    n = 2**28
    with pytest.raises(RedblueError, match=r"n_k = 268,435,456.*larger under full, causal and sliding-window masks"):
        count("flash", Problem(n, n, 64, mask=Mask.n_of_m(1, 2)), words=20_000)


@pytest.mark.parametrize(("schedule", "direction"), PASSES)
@examples(40)
@given(data=st.data())
def test_tiles_that_are_searched_on_a_shorter_problem_fit(schedule, direction, data):
    bands = st.just(Mask.full()) if schedule.full_only else masks | st.just(Mask.full())
    problem, words = data.draw(problems(direction, bands)), data.draw(st.integers(1, 600))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "MAX_AXIS", 5)  # as if sequences of 6 tokens were too long for the search
        patch.setattr(schedule_module, "MIN_SHORTENED", 1)
        try:
            assert schedule.cost(problem, schedule.tiles(problem, words)).peak <= words
        except TooFewWords as error:
            least = int(str(error).split("at least ")[1].split()[0])
            assert words < least
            assert schedule.cost(problem, schedule.tiles(problem, least)).peak <= least


@pytest.mark.parametrize(
    ("name", "problem", "words", "rows"),
    [
        ("flash_cluster", Problem(2**28, 2**28, 64), 2**34, 2**25),
        ("flash_cluster", Problem(2**24, 2**24, 128, heads=16, kv_heads=1), 3 * 2**32, 23_726_560),
        ("flash_kept", Problem(2**27 + 5, 2**27 + 5, 64, direction="backward"), 2**35, None),
    ],
)
def test_tiles_of_very_long_sequences_fill_the_cache(name, problem, words, rows):
    counted = count(name, problem, words=words)
    assert words / 2 < counted.peak <= words
    assert counted.tiles["rows"] == rows or rows is None


def test_keys_that_do_not_fit_whole_are_too_many_words():
    """At the length of the search, all keys would fit."""
    problem = Problem(2**27 + 5, 2**27 + 5, 64, direction="gradient_x")
    with pytest.raises(TooFewWords, match="at least 17314095942 words, got 11811160064"):
        schedules.get("gradient_x_once").tiles(problem, 11 * 2**30)


def test_more_query_heads_than_the_search_takes_are_refused():
    problem = Problem(1, 8, 8, heads=2**28, kv_heads=1)
    with pytest.raises(RedblueError, match=r"268,435,456 query heads per key head .* at most 134,217,728 if d = 8"):
        count("flash", problem, words=1000)
    assert count("flash", problem, tiles={"rows": 10}).words > 2**28


def test_the_blocks_of_a_cluster_that_covers_all_queries_take_equal_parts():
    tiles = schedules.get("flash_cluster").tiles
    assert tiles(Problem(9, 9, 4), 1000) == (5, 1, 2)
    assert tiles(Problem(9, 9, 4), 1000, {"rows": 4}) == (8, 1, 2)
    assert tiles(Problem(9, 9, 4), 9 * 10 + 9 + 9) == (5, 1, 2)
