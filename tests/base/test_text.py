"""Numbers, sizes and durations as text."""

import pytest

from redblue.base.text import amount, byte_amount, capacity, time


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (999.4, "999"),
        (999.6, "1 k"),
        (1000, "1 k"),
        (1234, "1.23 k"),
        (999_499, "999 k"),
        (999_999, "1 M"),
        (999_999_999, "1 G"),
        (999.9e15, "1 E"),
        (10**18, "1 E"),
        (2.5e24, "2.5 Y"),
    ],
)
def test_amounts(number, text):
    assert amount(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not known"),
        (1e-9, "1 ns"),
        (999.9e-9, "1 us"),
        (999.9e-6, "1 ms"),
        (1e-3, "1 ms"),
        (0.999, "999 ms"),
        (0.9999, "1 s"),
        (1.5, "1.5 s"),
        (999.4, "999 s"),
        (999.9, "1,000 s"),
        (12_345, "12,300 s"),
    ],
)
def test_durations(seconds, text):
    assert time(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_999, "1 MB"),
        (1024, "1 KiB"),
        (5 * 2**18, "1.25 MiB"),
        (2**30, "1 GiB"),
    ],
)
def test_sizes(size, text):
    assert capacity(size) == text


@pytest.mark.parametrize(("size", "text"), [(None, "-"), (999, "999 B"), (1024, "1.02 kB"), (999_999, "1 MB")])
def test_decimal_sizes(size, text):
    assert byte_amount(size) == text


def test_no_number_needs_an_exponent():
    for exponent in range(2300):
        number = 10 ** (exponent / 100)
        digits, _, prefix = amount(number).partition(" ")
        power = 1000 ** " kMGTPEZY".index(prefix or " ")
        assert float(digits.replace(",", "")) * power == pytest.approx(number, rel=0.006, abs=0.5)
        assert byte_amount(number) == f"{digits} {prefix}B"
        assert "e" not in time(number)
