"""Profiles of hypothesis: `fuzz` draws more, new examples and prints how to repeat them; others repeat theirs."""

import pytest
from hypothesis import settings

from support.examples import TIMES, examples, thorough


@pytest.mark.parametrize("name", ["quick", "repeatable"])
def test_make_test_draws_the_same_examples_on_every_machine(name):
    profile = settings.get_profile(name)
    assert profile.derandomize
    assert profile.deadline is None


def test_fuzz_draws_fresh_examples_and_prints_what_repeats_them():
    fuzz = settings.get_profile("fuzz")
    assert (fuzz.derandomize, fuzz.print_blob) == (False, True)


@pytest.mark.parametrize(
    ("name", "of_30", "of_2", "of_none"), [("quick", 10, 2, 33), ("repeatable", 30, 2, 100), ("fuzz", 150, 10, 500)]
)
def test_profiles_draw_different_numbers_of_examples(name, of_30, of_2, of_none):
    assert name in TIMES
    before = settings.get_current_profile_name()
    try:
        settings.load_profile(name)
        assert examples(30).max_examples == of_30
        assert examples(2).max_examples == of_2
        assert settings().max_examples == of_none
    finally:
        settings.load_profile(before)


def test_a_thorough_parameter_carries_the_mark():
    parameter = thorough("forward", None)
    assert parameter.values == ("forward", None)
    assert [mark.name for mark in parameter.marks] == ["thorough"]
