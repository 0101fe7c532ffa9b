"""The shapes and number types of the arrays of a call."""

import pytest

from redblue.kernels.sizes import WRITTEN, Sizes, array_forms, magnitude


def test_the_arrays_of_a_pass():
    sizes = Sizes((2,), 3, 4, 5, 6, 7, 8)
    forward = array_forms(sizes, "bfloat16", "forward")
    assert forward["q"] == ((2, 12, 5, 7), "bfloat16")
    assert forward["v"] == ((2, 3, 6, 8), "bfloat16")
    assert forward["lse"] == ((2, 12, 5, 1), "float32")
    backward = array_forms(sizes, "float64", "backward")
    assert list(backward)[: len(forward)] == list(forward)
    assert {*WRITTEN["backward"]} <= {*backward}
    assert all(backward[f"d{name}"] == backward[name] for name in ("q", "k", "v", "out"))
    assert backward["delta"] == ((2, 12, 5, 1), "float64")


@pytest.mark.parametrize(("count", "rounded"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_magnitude_rounds_up_to_a_power_of_two(count, rounded):
    assert magnitude(count) == rounded
