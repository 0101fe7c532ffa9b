"""Extent of the tests: the number of examples of property tests, and the parameters left to `make test-all`.

Every run draws the same examples; `make fuzz` draws new and more examples.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

FUZZ_FACTOR = 5  # times as many examples under the profile `fuzz`


def register_profiles() -> None:
    """Register `repeatable` (in force unless pytest gets --hypothesis-profile) and `fuzz`.

    repeatable: the examples follow from the test's source alone, so every machine draws the same ones.
    fuzz: fresh examples in every run; a failure prints the line that repeats it.
    """
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.register_profile("fuzz", derandomize=False, deadline=None, print_blob=True)  # CI derandomizes by default
    settings.load_profile("repeatable")


def examples(count: int, **more: Any) -> settings:
    """Return settings of a property test: `count` examples, FUZZ_FACTOR times as many under the profile `fuzz`."""
    return settings(max_examples=count if settings().derandomize else FUZZ_FACTOR * count, **more)


def thorough(*values: Any) -> Any:
    """Mark the parameters of a case that `make test` leaves out, because another case tests nearly the same."""
    return pytest.param(*values, marks=pytest.mark.thorough)
