import pytest

from redblue import Mask, Problem, RedblueError


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
        ({"n_q": 0}, "n_q must be at least 1, got 0"),
        ({"n_k": -3}, "n_k must be at least 1, got -3"),
        ({"d": 0}, "d must be at least 1"),
        ({"d": 1.5}, "d must be a whole number, got 1.5"),
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
