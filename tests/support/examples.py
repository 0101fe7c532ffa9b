"""How much is tested: how many examples the property tests draw, and which parameters wait for `make test-all`.

The examples are the same ones in every run, or fresh and more ones under `make fuzz`.
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
    """Settings of a property test: `count` examples, FUZZ_FACTOR times as many under the profile `fuzz`."""
    return settings(max_examples=count if settings().derandomize else FUZZ_FACTOR * count, **more)


def thorough(*values: Any) -> Any:
    """Parameters of a test whose case `make test` leaves out, because another case tests nearly the same."""
    return pytest.param(*values, marks=pytest.mark.thorough)
