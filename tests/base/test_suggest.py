"""Suggestions for unknown names, and the error that carries them."""

import pytest

from redblue.base.errors import UnknownName
from redblue.base.suggest import suggest

NAMES = ("flash", "hybrid", "L1d/L2")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("flahs", "nearest: flash"),
        ("FLASH", "nearest: flash"),
        ("l1d/l2", "nearest: L1d/L2"),
        ("", "known: L1d/L2, flash, hybrid"),
        ("zzzz", "known: L1d/L2, flash, hybrid"),
        ("flash" * 100_000, "known: L1d/L2, flash, hybrid"),
    ],
)
def test_near_misses(name, suggestion):
    assert suggest(name, NAMES) == suggestion


def test_the_error_shortens_a_long_name_and_shows_no_control_characters():
    said = str(UnknownName("schedule", "\x1b[31m" + "x" * 300, NAMES, "A hint"))
    assert said.startswith("unknown schedule '\\x1b[31mxxx")
    assert said.endswith("... (305 characters); known: L1d/L2, flash, hybrid. A hint")
