"""Whole numbers: arguments, and sizes as a user writes them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.base.errors import RedblueError
from redblue.base.integers import parse_size, whole_number
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
