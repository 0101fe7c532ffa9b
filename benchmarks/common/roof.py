"""The measured roof of the machine: the rates of multiply-adds and of reads alone, without attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.common.timing import THREADS
from redblue.catalogue.detect import detect_cpu
from redblue.compiled import _core

OVER_LAST_CACHE = 4  # size over the last cache, so that the cache holds only a small part


def products_dtype(dtype: str) -> str:
    """The type whose multiply-adds the kernels use for arrays of this type on this CPU."""
    return "bfloat16" if dtype == "bfloat16" and _core.choose_isa().has_bfloat16 else "float32"


def multiply_adds(dtype: str, seconds: float) -> Callable[[], float]:
    """A function that measures the FLOP/s of multiply-adds, as the products of arrays of this type use them."""
    return partial(_core.multiply_add_rate, products_dtype(dtype), THREADS, seconds)


def reads(size: int, seconds: float, threads: int = THREADS) -> Callable[[], float]:
    """A function that measures the bytes per second of reading `size` bytes again and again."""
    most = 2 * OVER_LAST_CACHE * last_cache_bytes()  # reading more bytes gives the same rate
    return partial(_core.read_rate, min(size, most) // threads, threads, seconds)


def last_cache_bytes() -> int:
    caches = detect_cpu().caches
    return caches[-1].capacity_bytes if caches else 32 << 20
