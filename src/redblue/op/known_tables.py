"""Checked page tables and lengths, kept between calls: the layers of a model all give the same ones.

Engines change tables in place, so a kept table serves a call only if all its bytes are those that were checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.compiled import _core
from redblue.op import api
from redblue.op.pages import Sequences

MOST = 8  # tables that are kept
MOST_BYTES = 1 << 22  # of a call's numbers, to be kept


class Given(NamedTuple):
    """An argument in memory. form: its shape and number type."""

    address: int
    bytes: int
    form: tuple[Any, ...]


class Kept(NamedTuple):
    """Copies of the arguments of an earlier call (None: not given), and the sequences that they describe."""

    facts: tuple[Any, ...]
    copies: tuple[tuple[Given, np.ndarray] | None, ...]
    sequences: Sequences


_kept: tuple[Kept, ...] = ()


def known(given: tuple[Any, ...], facts: tuple[Any, ...], check: Callable[[], Sequences]) -> Sequences:
    """The sequences that `check` makes of the given tables and lengths, or those of an earlier call with equal ones.

    facts: everything else that the result depends on, hashable or not, but comparable. What `check` raises, it raises.
    """
    global _kept
    arrays = tuple(None if x is None else _given(x) for x in given)
    if any(array is None and x is not None for array, x in zip(arrays, given, strict=True)):
        return check()
    for kept in _kept:
        if kept.facts == facts and all(map(_same, arrays, kept.copies)):
            return kept.sequences
    sequences = check()
    if sum(array.bytes for array in arrays if array) <= MOST_BYTES:
        copies = tuple(None if x is None else _copied(array, x) for array, x in zip(arrays, given, strict=True))
        _kept = (Kept(facts, copies, sequences), *_kept[: MOST - 1])
    return sequences


def _given(x: Any) -> Given | None:
    """The argument, if it is a contiguous array or tensor of the CPU; else None."""
    if isinstance(x, np.ndarray):
        if not x.flags.c_contiguous or x.dtype.kind not in "iu":
            return None
        return Given(x.ctypes.data, x.nbytes, (x.shape, x.dtype))
    if not api.is_torch(x) or not x.is_cpu or x.is_nested or x.is_sparse or x.is_floating_point():
        return None
    if x.is_complex() or not x.is_contiguous() or x.is_neg():
        return None
    return Given(x.data_ptr(), x.nbytes, (x.shape, x.dtype))


def _same(array: Given | None, copy: tuple[Given, np.ndarray] | None) -> bool:
    if array is None or copy is None:
        return array is None and copy is None
    kept = copy[0]
    return array.form == kept.form and _core.same_bytes(array.address, kept.address, array.bytes)


def _copied(array: Given | None, x: Any) -> tuple[Given, np.ndarray]:
    """A copy of the argument, and its memory."""
    assert array is not None
    copy = np.array(x.detach().numpy() if api.is_torch(x) else x)
    return array._replace(address=copy.ctypes.data), copy
