"""ListOps (Nangia & Bowman 2018; Long Range Arena, Tay et al. 2021): nested operations on digits, with their value.

A text looks like "[MAX 2 9 [MIN 4 7 ] 0 ]". An opening bracket and its operation are one symbol; a closing bracket is
another symbol.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

DIGITS = tuple(str(digit) for digit in range(10))
OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLOSE = "]"
SYMBOLS = ("pad", *DIGITS, *OPERATIONS, CLOSE)
MAX_DEPTH, MAX_ARGUMENTS, NESTED = 10, 10, 0.25  # as in the papers; an argument is an operation in a quarter of cases
Tree = tuple[list[str], int]


def tree(random: np.random.Generator, room: int, depth: int = 1) -> Tree:
    """Draw an operation of at most `room` symbols, which must be 4 or more. Returns its symbols and its value."""
    names = list(OPERATIONS)
    name = names[random.integers(len(names))]
    symbols, values = [name], list[int]()
    count = min(int(random.integers(2, MAX_ARGUMENTS + 1)), room - 2)
    for left in reversed(range(count)):
        free = room - len(symbols) - 1 - left  # the closing bracket and the later arguments need a symbol each
        nests = depth < MAX_DEPTH and free >= 4 and random.random() < NESTED
        digit = int(random.integers(10))
        argument = tree(random, free, depth + 1) if nests else ([DIGITS[digit]], digit)
        symbols += argument[0]
        values.append(argument[1])
    return [*symbols, CLOSE], OPERATIONS[name](values)


def batch(seed: tuple[int, ...], size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `size` texts of n/4 to n symbols. Returns the symbols' numbers (size, n), padded with 0, and the values."""
    random = np.random.default_rng(seed)
    numbers = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    tokens = np.zeros((size, n), np.int64)
    values = np.zeros(size, np.int64)
    for i in range(size):
        while len((drawn := tree(random, n))[0]) < n // 4:
            pass
        tokens[i, : len(drawn[0])] = [numbers[symbol] for symbol in drawn[0]]
        values[i] = drawn[1]
    return tokens, values
