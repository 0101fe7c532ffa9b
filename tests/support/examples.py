"""Extent of the tests: the number of examples of property tests, and the parameters left to `make test-thorough`.

Every run except `make fuzz` draws the same examples. `make test` draws a third of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

EXAMPLES = 100  # of a property test without a number of its own
# The profiles, and the factor of each on a test's number of examples. pytest's option is --hypothesis-profile=NAME.
TIMES = {"quick": 1 / 3, "repeatable": 1, "fuzz": 5}


def register_profiles() -> None:
    """Register the profiles `quick`, `repeatable` and `fuzz`; `repeatable` is the default.

    quick, repeatable: the examples follow from the test's source alone, so every machine draws the same ones. fuzz: new
    examples in every run; a failure prints the line that repeats it.
    """
    for name, times in TIMES.items():
        fresh = name == "fuzz"  # set in each profile, because hypothesis derandomizes in CI by default
        count = round(times * EXAMPLES)
        settings.register_profile(name, max_examples=count, derandomize=not fresh, deadline=None, print_blob=fresh)
    settings.load_profile("repeatable")


def examples(count: int, **more: Any) -> settings:
    """Return settings of a property test with `count` examples, times the factor of the profile in force."""
    times = TIMES.get(settings.get_current_profile_name(), 1)  # a process without conftest has hypothesis' own profile
    return settings(max_examples=max(2, round(times * count)), **more)


def thorough(*values: Any) -> Any:
    """Mark the parameters of a case that `make test` leaves out, because another case tests nearly the same."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def nightly(*values: Any) -> Any:
    """Mark the parameters of a case that only `make test-all` runs, because another case tests nearly the same."""
    return pytest.param(*values, marks=[pytest.mark.thorough, pytest.mark.nightly])
