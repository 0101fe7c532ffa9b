"""The field machine: runs a schedule on words of a finite field F_q, in which a word holds log2(q) bits and no more.

It is the machine of the bound for any arithmetic (docs/lab/theory.md, Theorem 4). Real numbers would not do: one real
word can encode a whole matrix.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.machine.errors import MachineError
from redblue.machine.numeric import Numeric

PRIME = 2**31 - 1  # the largest prime below 2^31
# Words are below 2^31. A matrix product splits the words of one factor at this bit, into halves of at most 16 bits. The
# sum of 2^16 products of a word and a half is then below 2^63, so int64 holds it.
LOW_BITS = 16


class Field(Numeric):
    """Runs a schedule on whole numbers modulo the prime q = `prime`.

    Sums, differences, products and quotients are the field's operations; x / 0 is 0. A float is a fraction whose
    denominator is a power of two, and becomes that fraction in the field; infinities and NaN become 0. A field has no
    order and no exponential, and the bound allows any function in their place: maximum and minimum compare the
    representatives 0 .. q - 1, exp(x) is x^2, and log(x) is 1 / x.
    Raises RedblueError unless q is an odd prime of at most 2^31 - 1.
    """

    def __init__(self, capacity: int | None = None, prime: int = PRIME, max_moves: float = math.inf) -> None:
        super().__init__(capacity, max_moves)
        self.prime = whole_number("prime", prime, least=3, most=PRIME)
        if not is_prime(self.prime):
            raise RedblueError(f"prime must be a prime number, got {prime}: {prime} has divisors")

    def slow_input(self, name: str, shape: tuple[int, ...], data: np.ndarray | None) -> np.ndarray:
        array = np.asarray(data)
        if array.dtype.kind not in "iu":
            raise MachineError(f"{name} must hold whole numbers, the words of F_{self.prime}, got {array.dtype}")
        if array.shape != shape:
            raise MachineError(f"{name} has shape {array.shape}, the problem needs {shape}")
        return array.astype(np.int64) % self.prime

    def slow_storage(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.int64)

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.int64)

    def elementwise(self, ufunc: np.ufunc, inputs: list[Any]) -> np.ndarray:
        words = [self.word(x) for x in inputs]
        match ufunc:
            case np.add | np.subtract | np.multiply:
                return ufunc(*words) % self.prime
            case np.maximum | np.minimum:
                return ufunc(*words)
            case np.divide:
                return words[0] * self.inverse(words[1]) % self.prime
            case np.exp:
                return words[0] * words[0] % self.prime
            case np.log:
                return self.inverse(words[0])
        raise MachineError(f"the field machine has no function in place of {ufunc.__name__}")

    def reduce(self, ufunc: np.ufunc, data: np.ndarray, axis: int) -> np.ndarray:
        return ufunc.reduce(data, axis=axis) % self.prime

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.shape[1] > 1 << LOW_BITS:
            raise MachineError(
                f"a product over F_q sums at most {1 << LOW_BITS:,} words, got {a.shape[1]:,}: use smaller tiles"
            )
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        high, low = a @ (b >> LOW_BITS) % self.prime, a @ (b & ((1 << LOW_BITS) - 1))
        return ((high << LOW_BITS) + low) % self.prime

    def assign(self, data: np.ndarray, key: Any, value: Any) -> None:
        data[key] = self.word(value)

    def select(self, pairs: Any, rows: range, cols: range, data: np.ndarray, otherwise: float) -> np.ndarray:
        return np.where(pairs.dense(rows, cols), data, self.word(otherwise))

    def word(self, x: Any) -> Any:
        """Return words as they are, and a plain number as its word of the field."""
        return x if isinstance(x, np.ndarray) else embed(float(x), self.prime)

    def inverse(self, x: Any) -> np.ndarray:
        """Return x^(q - 2), word by word: 1 / x, and 0 for 0."""
        square, result = np.asarray(x), np.ones_like(x)
        for bit in reversed(f"{self.prime - 2:b}"):
            result = result * square % self.prime if bit == "1" else result
            square = square * square % self.prime
        return result


@lru_cache(maxsize=256)
def embed(number: float, prime: int) -> int:
    """Return the word of F_q that stands for a float."""
    if not math.isfinite(number):
        return 0
    over, under = number.as_integer_ratio()
    return over * pow(under, -1, prime) % prime


@lru_cache(maxsize=16)
def is_prime(number: int) -> bool:
    """Whether a number of at least 2 is prime, by trial division: up to 2^15.5 divisors."""
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
