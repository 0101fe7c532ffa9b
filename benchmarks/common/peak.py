"""The measured peak: the rate of independent multiply-adds on all threads of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.common.timing import THREADS
from redblue.compiled import _core


def products_dtype(dtype: str) -> str:
    """The type whose multiply-adds the kernels use for arrays of this type on this CPU."""
    return "bfloat16" if dtype == "bfloat16" and _core.choose_isa().has_bfloat16 else "float32"


def multiply_adds(dtype: str, seconds: float) -> Callable[[], float]:
    """A function that measures the FLOP/s of multiply-adds, as the products of arrays of this type use them."""
    return partial(_core.multiply_add_rate, products_dtype(dtype), THREADS, seconds)
