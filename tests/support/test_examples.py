"""Profiles of hypothesis: the default repeats its examples; `fuzz` draws more, new ones and prints how to repeat."""

from hypothesis import settings

from support.examples import FUZZ_FACTOR, examples, thorough


def test_make_test_draws_the_same_examples_on_every_machine():
    profile = settings.get_profile("repeatable")
    assert profile.derandomize
    assert profile.deadline is None


def test_fuzz_draws_fresh_and_more_examples_and_prints_what_repeats_them():
    fuzz = settings.get_profile("fuzz")
    assert (fuzz.derandomize, fuzz.print_blob) == (False, True)
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("repeatable")
        assert examples(30).max_examples == 30
        settings.load_profile("fuzz")
        assert examples(30).max_examples == FUZZ_FACTOR * 30
    finally:
        settings.load_profile(before)


def test_a_thorough_parameter_carries_the_mark():
    parameter = thorough("forward", None)
    assert parameter.values == ("forward", None)
    assert [mark.name for mark in parameter.marks] == ["thorough"]
