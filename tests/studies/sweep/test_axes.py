"""The grammar of the axes of a sweep."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.studies import sweep
from redblue.studies.sweep.axes import make_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128", [128]),
        ("64,128,256", [64, 128, 256]),
        (" 64 , 128 ", [64, 128]),
        ("1024:8192:x2", [1024, 2048, 4096, 8192]),
        ("1000:8191:x2", [1000, 2000, 4000, 8000]),
        ("10:40:x1.5", [10, 15, 22, 34]),
        ("128:512:+64", [128, 192, 256, 320, 384, 448, 512]),
        ("1:10:+4", [1, 5, 9]),
        ("7:7:x2", [7]),
        ("3,64:256:x2,3,128", [3, 64, 128, 256]),
        ("1:6:x1.1", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_numbers(text, values):
    assert list(make_axis("n", text).values) == values


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_a_list_stands_for_its_values(values):
    assert make_axis("words", ",".join(map(str, values))).values == tuple(dict.fromkeys(values))
    assert make_axis("words", values).values == tuple(dict.fromkeys(values))


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1000, 10**6))
def test_a_range_with_a_step(first, more, step):
    assert list(make_axis("d", f"{first}:{first + more}:+{step}").values) == list(range(first, first + more + 1, step))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.one_of(st.integers(2, 9), st.sampled_from([1.25, 1.5, 2.75])))
def test_a_range_with_a_factor(first, growth, factor):
    values = make_axis("d", f"{first}:{first * growth}:x{factor}").values
    assert values[0] == first
    assert all(a < b for a, b in itertools.pairwise(values))
    assert values[-1] <= first * growth < values[-1] * factor + factor  # no more would fit
    exact = [round(first * factor**i) for i in range(80)]
    assert list(values) == list(dict.fromkeys(value for value in exact if value <= first * growth))


@pytest.mark.parametrize(
    ("name", "given_", "says"),
    [
        ("n", "", "n takes VALUE, a list A,B,C, or a range"),
        ("n", "64,,128", "got '64,,128'"),
        ("n", "64:128", "got '64:128'"),
        ("n", "64:128:2", "such as 128, or 64,128,256, or 1Ki:64Ki:x2"),
        ("n", "-4", "got '-4'"),
        ("n", "1e", "n must be a whole number such as 4096"),
        ("n", "1:4K:xK", "got"),
        ("n", "٣", "got"),
        ("n", "0", "n must be a whole number of at least 1, got 0"),
        ("window", [-1], "window must be a whole number of at least 0, got -1"),
        ("n", "128:64:x2", "a range goes up"),
        ("n", "64:128:x1", "a factor above x1"),
        ("n", "64:128:+0", "a step of at least +1"),
        ("n", "0:128:x2", "a first number of at least 1"),
        ("n", "1:1000000000:+1", "1,000,000,000 values, at most 100,000"),
        ("n", "1:1000000000:x1.00001", "at most 100,000"),
        ("n", [2.5], "n must be a whole number of at least 1, got 2.5"),
        ("n", [True], "n must be a whole number of at least 1, got True"),
        ("n", [], "n has no values"),
        ("dtype", "int8", "dtype must be one of float64, float32"),
        ("direction", "up", "direction must be one of forward, backward"),
        ("schedule", "flahs", "unknown schedule 'flahs'; nearest: flash"),
        ("memory", "t4,", "memory has an empty value"),
        ("colour", "red", "unknown axis 'colour'; known: batch, d,"),
        ("head", "2", "unknown axis 'head'; nearest: heads, kv_heads"),
        ("n", "9" * 5000, "n takes numbers of at most 10^18: give smaller ones; got '999"),
        ("n", "0" * 5000 + "1", "at most 10^18"),
        ("n", f"1:{10**400}:x2", "at most 10^18"),
        ("n", f"1:100:x{10**400}.5", "at most 10^18"),
        ("n", f"1:{10**34}:x2", "at most 10^18"),
        ("n", f"1:100:+{10**4000}", "at most 10^18"),
        ("words", 10**18 + 1, "words must be at most 1,000,000,000,000,000,000, got 1,000,000,000,000,000,001"),
        ("words", [64, -(10**5000)], "words must be a whole number of at least 1, got a number of 16,610 bits"),
        ("n", [int], "n must be a whole number of at least 1, got <class 'int'>"),
        ("n", "x" * 5000, "'... (5,000 characters)"),
    ],
)
def test_wrong_axes_are_refused(name, given_, says):
    with pytest.raises(RedblueError) as refused:
        make_axis(name, given_)
    assert says in str(refused.value)


def test_the_largest_numbers_are_taken():
    assert make_axis("words", f"00{10**18},{10**18 - 1}:{10**18}:+1").values == (10**18, 10**18 - 1)
    assert make_axis("words", 10**18).values == (10**18,)
    assert make_axis("n", f"1:3:x1.5{'0' * 500}").values == (1, 2, 3)
    assert len(make_axis("n", f"1:{10**18}:x1.5").values) == 102


def test_a_mask_file_may_have_commas_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lay,out.npy", "b.npy"):
        np.save(name, np.eye(4, dtype=bool))
    product = sweep.make_sweep({"n": 64, "d": 8, "words": 999, "mask": " blocks:lay,out.npy,16 "})
    assert product.axes["mask"].values == ("blocks:lay,out.npy,16",)
    assert [row["mask"] for row in sweep.run(product, jobs=1)][:1] == ["blocks:lay,out.npy,16"]
    several = make_axis("mask", ["blocks:lay,out.npy,16,16", "full,blocks:b.npy,16,causal"]).values
    assert several == ("blocks:lay,out.npy,16,16", "full", "blocks:b.npy,16", "causal")


def test_a_comma_before_a_digit_belongs_to_the_mask():
    text = "full,window:1024,0,causal-bottom-right, window:3,4"
    assert make_axis("mask", text).values == ("full", "window:1024,0", "causal-bottom-right", "window:3,4")
    product = sweep.make_sweep({"n": 64, "d": 8, "words": 999, "mask": text})
    assert product.masks[1] == rb.Mask.sliding_window(1024, 0)
    assert product.masks[3] == rb.Mask.sliding_window(3, 4)


@pytest.mark.parametrize(
    ("values", "geometric"),
    [
        ("1024:65536:x2", True),
        ("10:1000:x1.5", True),
        ("64,128,256,512", True),
        ("128:512:+64", False),
        ("1,2,3", False),
        ("64,128", False),
        ("0:64:+8", False),
    ],
)
def test_which_axes_are_geometric(values, geometric):
    assert make_axis("window", values).geometric == geometric


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"n": 64, "words": 99}, "d not given"),
        ({"n_q": 64, "d": 8, "words": 99}, "n or n_k not given"),
        ({"n": 64, "d": 8}, "words or memory not given"),
        ({"n": 64, "d": 8, "words": 99, "mask": "full", "window": 3}, "window cannot be given with mask: leave one"),
        ({"n": 64, "n_q": 1, "n_k": 2, "d": 8, "words": 99}, "n cannot be given with n_k and n_q: leave one"),
        ({"n": 64, "d": 8, "words": 99, "mask": "diagonal"}, "mask must be full, causal"),
        ({"n": 64, "d": 8, "memory": "h100"}, "unknown memory 'h100'; nearest: h100-sxm"),
        ({"n": "1:1000:+1", "d": "1:1000:+1", "words": 99}, "1,000,000 points, at most"),
        (
            {"n": 64, "d": 8, "words": 99, "heads": "3,5", "kv_heads": 2},
            "none of the 2 points is a valid problem: heads",
        ),
    ],
)
def test_wrong_sweeps_are_refused(axes, says):
    with pytest.raises(RedblueError) as refused:
        sweep.make_sweep(axes)
    assert says in str(refused.value)


@pytest.mark.parametrize("given_", [42, "n=64", None, [("n", 64)]])
def test_arguments_that_are_not_axes_are_refused(given_):
    for make in (sweep.run, sweep.make_sweep):
        with pytest.raises(RedblueError, match="a sweep must be axes by name, such as"):
            make(given_)
