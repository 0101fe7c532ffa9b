"""Whole numbers: arguments, and sizes as a user writes them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.base.errors import RedblueError
from redblue.base.integers import int64_array, integer_array, parse_size, whole_number
from support.examples import examples


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4_096", 4096),
        (" 007 ", 7),
        ("-4", -4),
        ("1e3", 1000),
        ("1.5E+6", 1_500_000),
        ("4K", 4000),
        ("4k", 4000),
        ("4 Ki", 4096),
        ("1M", 10**6),
        ("1.5G", 1_500_000_000),
        ("2Ti", 2**41),
    ],
)
def test_sizes(text, value):
    assert parse_size("n", text) == value


@pytest.mark.parametrize(("text", "value"), [("64", 64), ("64B", 64), ("4KB", 4000), ("4KiB", 4096)])
def test_sizes_in_bytes(text, value):
    assert parse_size("line", text, "bytes") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "n must be a whole number such as 4096, 4_096, 4K") for text in ("", "four", "4 096", "1__0", "_1")),
        *(
            (text, "n must be a whole number such as 4096, 4_096, 4K")
            for text in ("4Kx", "1e-3", "e3", "٣", "nan", "x1")
        ),
        ("1.5", "n must be a whole number, got '1.5'"),
        ("4KiB", "n is counted, not measured in bytes: leave out the B of '4KiB'"),
        ("9" * 100_000, r"got '9{60}'\.\.\. \(100,000 characters\)"),
    ],
)
def test_what_is_no_size(text, says):
    with pytest.raises(RedblueError, match=says):
        parse_size("n", text)


@given(st.text(alphabet="0123456789eKkMi_.+-B ", max_size=12))
@examples(200)
def test_any_text_is_a_whole_number_or_an_error(text):
    try:
        assert type(parse_size("n", text)) is int
    except RedblueError as error:
        assert str(error).startswith("n ")  # noqa: PT017


def test_a_whole_number_without_limits():
    assert whole_number("n", -(2**70), -math.inf, math.inf) == -(2**70)
    for value in (1.5, True, "1"):
        with pytest.raises(RedblueError, match="n must be a whole number, got"):
            whole_number("n", value, -math.inf, math.inf)


# Arrays of whole numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint64])
@pytest.mark.parametrize("values", [3, [1, 2], [[1, 2]]])
def test_an_integer_array_keeps_its_type_and_shape(values, dtype):
    values = np.array(values, dtype)
    array = integer_array("x", values)
    assert array.dtype == dtype
    assert np.array_equal(array, values)


@pytest.mark.parametrize("empty", [[], np.zeros((0, 2)), np.array([], object)])
def test_an_empty_array_of_any_type_holds_whole_numbers(empty):
    array = integer_array("x", empty)
    assert array.dtype == np.int64
    assert array.shape == np.shape(empty)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0.5, 1.0], r"x must be three things, got shape \(2,\) of float64"),
        ([True], r"x must be three things, got shape \(1,\) of bool"),
        ([2**70], r"x must be three things, got shape \(1,\) of object"),
        ([[1]], r"x must be three things, got shape \(1, 1\) of int64"),
        ([1, [2]], "x must be three things; its entries have different shapes"),
    ],
)
def test_other_arrays_are_refused(values, says):
    with pytest.raises(RedblueError, match=says):
        int64_array("x", values, "three things")
    with pytest.raises(RedblueError, match=says):
        integer_array("x", values, "three things", dimensions=1)


def test_an_array_that_numpy_cannot_read_is_refused():
    class Elsewhere:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("the values are on a GPU")

    with pytest.raises(RedblueError, match="x must be whole numbers of at most 64 bits: the values are on a GPU"):
        integer_array("x", Elsewhere())


def test_an_int64_array_is_a_copy_and_refuses_numbers_of_64_bits():
    values = np.array([1, 2])
    array = int64_array("x", values)
    array[0] = 5
    assert values[0] == 1
    with pytest.raises(RedblueError, match=r"x\[1\] must fit 63 bits, got 9223372036854775808"):
        int64_array("x", np.array([1, 2**63], np.uint64))
