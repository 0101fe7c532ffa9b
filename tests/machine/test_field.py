"""The field machine: arithmetic modulo a prime, and the words that represent plain numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.base.errors import RedblueError
from redblue.machine import Field, MachineError, exp, log, maximum
from redblue.machine.field import PRIME, embed


def computed(prime, function, *arrays):
    """Apply a function to tiles of the machine, and return the words of its result."""
    m = Field(prime=prime)
    slow = [m.input(f"x{n}", array.shape, array) for n, array in enumerate(arrays)]
    return m.new("result", function(*(m.load(x[tuple(map(range, x.shape))]) for x in slow))).read()


@given(st.sampled_from([3, 7, 257, 65537, PRIME]), st.integers(0, 2**32), st.integers(1, 5))
def test_arithmetic_is_that_of_the_field(prime, seed, size):
    a, b = np.random.default_rng(seed).integers(prime, size=(2, size, size))
    big = a.astype(object), b.astype(object)
    for function in (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x @ y):
        assert (computed(prime, function, a, b) == function(*big) % prime).all()
    quotient = computed(prime, lambda x, y: x / y, a, b)
    assert (quotient * big[1] % prime == np.where(b, a, 0)).all()
    assert (computed(prime, lambda x: x.sum(axis=0), a) == big[0].sum(axis=0) % prime).all()


def test_a_float_stands_for_its_fraction():
    for prime in (7, PRIME):
        assert embed(0.5, prime) * 2 % prime == 1
        assert embed(-3.0, prime) == prime - 3
        assert embed(0.75, prime) == (embed(0.5, prime) + embed(0.25, prime)) % prime
        assert embed(float("-inf"), prime) == embed(float("nan"), prime) == 0
    assert computed(7, lambda x: x * 0.5 + 1, np.array([4])) == [3]


def test_functions_without_a_counterpart_are_functions_of_the_words_alone():
    x = np.array([0, 1, 2, 6])
    assert computed(7, exp, x).tolist() == [0, 1, 4, 1]
    assert computed(7, log, x).tolist() == [0, 1, 4, 6]
    assert computed(7, lambda a: maximum(a, 2.0), x).tolist() == [2, 2, 2, 6]


@pytest.mark.parametrize("prime", [1, 2, 4, 9, 2**31, 2**31 - 2, 7.0, True, "7"])
def test_a_prime_is_needed(prime):
    with pytest.raises(RedblueError, match="prime must be"):
        Field(prime=prime)


def test_inputs_are_whole_numbers_of_the_right_shape():
    with pytest.raises(MachineError, match="must hold whole numbers"):
        Field().input("x", (2,), np.array([0.5, 1]))
    with pytest.raises(MachineError, match="has shape"):
        Field().input("x", (3,), np.array([0, 1]))
    m = Field(prime=7)
    assert m.load(m.input("x", (2,), np.array([-1, 9]))[range(2)]).read().tolist() == [6, 2]
