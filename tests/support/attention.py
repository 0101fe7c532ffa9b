"""Calls of attention, the instruction set and the settings with which they run, and their dropout."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck

import redblue as rb
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import mask_form
from redblue.kernels.cpu.arrays import described as described
from redblue.op import api
from support.examples import examples

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def keys_seen(mask: rb.Mask | None, n_q: int, n_k: int) -> int:
    """Count the keys up to the last attended key: a spilling GPU kernel gets only these keys of a band."""
    return n_k if mask is None else 1 + int(np.flatnonzero(mask.to_dense(n_q, n_k).any(0))[-1])


# Names instead of rows, because nanobind reports a row that outlives the interpreter as a leak. REDBLUE_ISA selects one
# row for all tests, possibly an emulated one.
ONLY = os.environ.get("REDBLUE_ISA")
ROWS = [
    pytest.param(
        row.name, id=row.name, marks=pytest.mark.skipif(not row.supported, reason=f"this CPU cannot run {row.name}")
    )
    for row in ([_core.choose_isa(ONLY)] if ONLY else _core.list_isas())
]


def drawn(count: int = 100) -> Any:
    """Return `examples` for tests with the fixture `isa`, which stays the same for all of a test's examples.

    A function, because conftest.py imports this module before pytest loads the profile of --hypothesis-profile.
    """
    return examples(count, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Case:
    """One call: arrays, options of rb.attention, and settings of the kernel."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)
    tile: cpu.AnyTile | None = None
    threads: int = 1
    gathers: bool | None = None  # masks other than bands: True: single pairs; False: tiles; None: as planned

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of the scores: (lead..., heads, n_q, n_k)."""
        lead = np.broadcast_shapes(self.q.shape[:-3], self.k.shape[:-3], self.v.shape[:-3])
        heads = max(self.q.shape[-3], self.k.shape[-3], self.v.shape[-3])
        return *lead, heads, self.q.shape[-2], self.k.shape[-2]

    def __repr__(self) -> str:
        arrays = {n: getattr(self, n) for n in ("q", "k", "v", "dout")} | self.options
        settings = {"tile": self.tile, "threads": self.threads, "gathers": self.gathers}
        return "\n".join(
            f"{n}: {x.dtype} {x.shape}, strides {x.strides}, {x.ravel()[:4]}"
            if isinstance(x, np.ndarray)
            else f"{n}: {x}"
            for n, x in (arrays | settings).items()
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the float64 reference."""
        options = {name: self.options.get(name) for name in ("scale", "softcap", "bias", "sinks", "alibi")}
        mask, (n_q, n_k) = self.options.get("mask"), self.full[-2:]
        attends = None if mask is None or not n_q * n_k else mask.to_dense(n_q, n_k)
        share, seed = self.options.get("dropout", 0.0), self.options.get("seed")
        dropout = kept(self.full, share, seed) / (1 - share) if share else None
        return {"attends": attends, "dropout": dropout, **options}


@contextmanager
def running(
    row: _core.Isa | None = None,
    tile: cpu.AnyTile | None = None,
    threads: int | None = None,
    gathers: bool | None = None,
):
    """Fix the instruction set, tiles, threads and mask form (gathers: pairs) of all calls in the block."""
    with pytest.MonkeyPatch.context() as patch:
        if row is not None:
            patch.setattr(cpu, "isa", lambda: row)
        if tile is not None:
            patch.setattr(cpu, "plan_tile", lambda *_: tile)
            patch.setattr(cpu, "plan_spill_tile", lambda *_: tile)
        if threads is not None:
            patch.setattr(api, "default_threads", lambda: threads)
        if gathers is not None:
            patch.setattr(mask_form, "gathers", lambda *_: gathers)
        yield


def forward(case: Case) -> tuple[np.ndarray, np.ndarray]:
    with running(None, case.tile, case.threads, case.gathers):
        return rb.attention(case.q, case.k, case.v, return_lse=True, **case.options)


def backward(case: Case, out: np.ndarray, lse: np.ndarray, dlse: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    with running(None, case.tile, case.threads, case.gathers):
        return rb.attention_backward(case.dout, case.q, case.k, case.v, out, lse, dlse=dlse, **case.options)


def kept(
    full: tuple[int, ...],
    dropout: float,
    seed: int,
    tile: cpu.AnyTile | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Return which probabilities dropout keeps: with scores of 0 and V the identity, the output holds them."""
    *lead, heads, n_q, n_k = full
    q, k = np.zeros((*lead, heads, n_q, 1), np.float32), np.zeros((heads, n_k, 1), np.float32)
    v = np.broadcast_to(np.eye(n_k, dtype=np.float32), (heads, n_k, n_k))
    if 0 in full:
        return np.ones(full, bool)
    with running(None, tile, threads):
        return rb.attention(q, k, v, dropout=dropout, seed=seed) != 0
