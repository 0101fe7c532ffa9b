"""A cache of the results of checking page tables and lengths, because all layers of a model pass the same tables.

Engines change tables in place, so a cached result is used only if all bytes of its tables are unchanged. Another thread
may change tables while a result is computed, so a result is kept only if its tables have not changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from redblue.compiled import _core
from redblue.op import api

MAX_TABLES = 8  # tables in the cache
MAX_BYTES = 1 << 22  # most bytes of one call's tables in the cache
MAX_RESULTS = 32  # results per table

Result = TypeVar("Result")

Described = tuple[int, int, Any, Any]  # an argument in memory: address, bytes, shape and number type
Copies = tuple[tuple[Described, np.ndarray] | None, ...]  # each argument's copy; None if it was not given


class Kept(NamedTuple):
    """The tables and lengths of an earlier call, and the results that were computed from them.

    results: by the other facts on which they depend.
    """

    copies: Copies
    results: dict[Hashable, Any]


_kept: tuple[Kept, ...] = ()
_MISSING: Any = object()


def known(inputs: tuple[Any, ...], facts: Hashable, make: Callable[[], Result]) -> Result:
    """The result of `make` for these tables and lengths, from the cache if `make` has run for equal ones.

    facts: everything else that the result depends on. Errors of `make` propagate.
    """
    arrays = []
    for x in inputs:
        array = None if x is None else _described(x)
        if array is None and x is not None:
            return make()
        arrays.append(array)
    kept = _lookup(arrays)
    result = _MISSING if kept is None else kept.results.get(facts, _MISSING)  # one access: threads clear results
    if result is not _MISSING:
        return result
    if sum(array[1] for array in arrays if array) > MAX_BYTES:
        return make()
    copies = tuple(array and _copied(array, x) for array, x in zip(arrays, inputs, strict=True))
    result = make()
    if _same(arrays, copies):
        _keep(copies, facts, result)
    return result


def _lookup(arrays: Sequence[Described | None]) -> Kept | None:
    for kept in _kept:
        if _same(arrays, kept.copies):
            return kept
    return None


def _same(arrays: Sequence[Described | None], copies: Copies) -> bool:
    """Whether the arrays have the shapes, types and bytes of the copies."""
    for array, copy in zip(arrays, copies, strict=False):  # equally many; strict=True would cost time
        if array is None or copy is None:
            if array is not copy:
                return False
        else:
            address, size, shape, dtype = copy[0]
            if array[3] != dtype or array[2] != shape or not _core.same_bytes(array[0], address, size):
                return False
    return True


def _keep(copies: Copies, facts: Hashable, result: Any) -> None:
    global _kept
    kept = _lookup([copy and copy[0] for copy in copies])
    if kept is None:
        kept = Kept(copies, {})
        _kept = (kept, *_kept[: MAX_TABLES - 1])
    if len(kept.results) >= MAX_RESULTS:
        kept.results.clear()
    kept.results[facts] = result


def _described(x: Any) -> Described | None:
    """The argument, if it is a contiguous array or tensor of whole numbers on the CPU; else None."""
    if isinstance(x, np.ndarray):
        if not x.flags.c_contiguous or x.dtype.kind not in "iu":
            return None
        return x.ctypes.data, x.nbytes, x.shape, x.dtype
    if not api.is_torch(x) or not x.is_cpu or x.is_nested or x.is_sparse:
        return None
    dtype = x.dtype
    if dtype.is_floating_point or dtype.is_complex or not x.is_contiguous() or x.is_neg():
        return None
    return x.data_ptr(), x.nbytes, x.shape, dtype


def _copied(array: Described, x: Any) -> tuple[Described, np.ndarray]:
    """Copy the argument. Returns the description of the copy, and the copy."""
    copy = np.array(x.detach().numpy() if api.is_torch(x) else x)
    return (copy.ctypes.data, *array[1:]), copy
