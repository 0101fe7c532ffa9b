import pytest

from redblue import Mask, Problem, RedblueError, count
from redblue.lab import counts
from support.spaces import PASSES


def test_defaults_follow_the_given_sizes():
    p = Problem(n_q=8, n_k=9, d=4, heads=6)
    assert (p.d_v, p.kv_heads, p.group, p.streams, p.bytes_per_word) == (4, 6, 1, 6, 2)


def test_grouped_query_heads_become_rows_of_one_stream():
    stream = Problem(8, 9, 4, heads=6, kv_heads=2, batch=3, mask=Mask.causal()).one_stream()
    assert (stream.n_q, stream.n_k, stream.heads, stream.batch) == (24, 9, 1, 1)
    assert stream.mask.nnz(24, 9) == 3 * Mask.causal().nnz(8, 9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_q": 0}, "n_q must be a whole number of at least 1, got 0"),
        ({"n_k": -3}, "n_k must be a whole number of at least 1, got -3"),
        ({"d": 0}, "d must be a whole number of at least 1"),
        (
            {"n_q": 10**20},
            "n_q must be at most 1,152,921,504,606,846,976 .2.60., got 100,000,000,000,000,000,000: give",
        ),
        ({"n_k": 10**20}, "n_k must be at most"),
        ({"d": 2**60 + 1}, "d must be at most"),
        ({"d_v": 10**20}, "d_v must be at most"),
        ({"batch": 10**20}, "batch must be at most"),
        ({"heads": 10**20}, "heads must be at most"),
        ({"heads": 2, "kv_heads": 10**5000}, "kv_heads must be at most .* got a number of 16,610 bits"),
        (
            {"n_q": 2**59, "heads": 12, "kv_heads": 4},
            r"n_q \(576,.*query heads per key/value head \(3\).* must be at most",
        ),
        ({"d": 1.5}, "d must be a whole number of at least [01], got 1.5"),
        ({"batch": True}, "batch must be a whole number"),
        ({"heads": 6, "kv_heads": 4}, r"heads \(6\) must be a multiple of kv_heads \(4\)"),
        ({"dtype": "int8"}, "dtype must be one of .*float16.*got 'int8'"),
        ({"direction": "sideways"}, "direction must be one of forward, backward"),
        ({"mask": "causal"}, "mask must be a redblue.Mask"),
    ],
)
def test_bad_problems_are_refused_by_argument(change, says):
    with pytest.raises(RedblueError, match=says):
        Problem(**({"n_q": 4, "n_k": 4, "d": 4} | change))


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal("bottom-right"), Mask.blocks([[True]], 10**30)], ids=repr)
@pytest.mark.parametrize(("schedule", "direction"), PASSES)
def test_the_largest_sizes_are_counted(schedule, direction, mask):
    largest = dict.fromkeys(("n_q", "n_k", "d", "batch", "heads"), 2**60)
    problem = Problem(**largest, mask=Mask.full() if schedule.full_only else mask, direction=direction)
    for length in (1, 2**40, 10**30):
        tiles = dict.fromkeys(schedule.direction(problem).edges, length)
        assert count(schedule.name, problem, tiles=tiles).words > 2**240
    for refused in (
        lambda: count(schedule.name, problem, words=1000),
        lambda: counts.run(schedule.name, problem, tiles={}),
    ):
        with pytest.raises(RedblueError, match=r"closed form|[Gg]ive the tiles"):
            refused()
