"""Helpers of attention tests: instruction sets, strategies for calls, and tolerances against float64."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

import redblue as rb
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import mask_form
from redblue.kernels.cpu.arrays import described as described
from redblue.lab import reference
from redblue.op import api
from support.examples import examples
from support.mask_oracle import compositions
from support.spaces import masks

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
LAYOUTS = (
    "plain",
    "plain",
    "transposed",
    "heads inside",
    "columns apart",
    "rows apart",
    "reversed",
    "one row",
    "one head",
)


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


# Tolerances against float64 ------------------------------------------------------------------------


def biases(case: Case) -> np.ndarray | None:
    """Return the ALiBi term that each score is reduced by, in float64: (..., heads, n_q, n_k)."""
    alibi, (n_q, n_k) = case.options.get("alibi"), case.full[-2:]
    if alibi is None:
        return None
    distance = np.abs(np.arange(n_q)[:, None] + n_k - n_q - np.arange(n_k))
    return np.asarray(alibi, np.float64)[..., None, None] * distance


def unfused(case: Case, dlse: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Compute attention as PyTorch's separate operations: each result rounded to the type, 16-bit sums in float32."""
    dtype = case.q.dtype
    wide = np.float32 if dtype.itemsize == 2 else dtype.type

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(wide)

    inputs = case.arguments()
    group = case.full[-3] // case.k.shape[-3]
    q, dout = case.q.astype(wide), case.dout.astype(wide)
    k, v = (np.repeat(x.astype(wide), group, axis=-3) for x in (case.k, case.v))
    scale = wide(q.shape[-1] ** -0.5 if inputs["scale"] is None else inputs["scale"])
    factor = wide(1) if inputs["dropout"] is None else inputs["dropout"].astype(wide)
    lowest, slope = wide(-np.inf), wide(1)
    with np.errstate(all="ignore"):
        s = rounded(rounded(q @ k.swapaxes(-1, -2)) * scale)
        if inputs["softcap"] is not None:
            bent = rounded(np.tanh(rounded(s / wide(inputs["softcap"]))))
            s, slope = rounded(bent * wide(inputs["softcap"])), rounded(1 - bent * bent)
        if inputs["alibi"] is not None:
            s = rounded(s - biases(case).astype(wide))
        if (bias := inputs["bias"]) is not None:
            s = np.where(bias, s, lowest) if bias.dtype == bool else rounded(s + bias.astype(wide))
        if inputs["attends"] is not None:
            s = np.where(inputs["attends"], s, lowest)
        sink = lowest if inputs["sinks"] is None else inputs["sinks"].astype(wide)[:, None, None]
        top = np.maximum(s.max(axis=-1, keepdims=True, initial=lowest), sink)
        top = np.where(np.isneginf(top), wide(0), top)
        weights = np.exp(s - top)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - top)
        p = rounded(weights / np.where(total == 0, wide(1), total))
        used = rounded(p * factor)
        dp = rounded(rounded(dout @ v.swapaxes(-1, -2)) * factor)
        delta = (p * dp).sum(axis=-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
        ds = rounded(p * (dp - delta))
        dx = rounded(rounded(ds * slope) * scale)
        dq, dk, dv = dx @ k, dx.swapaxes(-1, -2) @ q, used.swapaxes(-1, -2) @ dout
        return {
            "out": rounded(used @ v),
            "lse": (top + np.log(total))[..., 0],
            "dq": rounded(reference.summed_to(dq, case.q.shape)),
            "dk": rounded(reference.summed_to(dk, case.k.shape)),
            "dv": rounded(reference.summed_to(dv, case.v.shape)),
        }


def floors(case: Case, dlse: np.ndarray | None = None) -> dict[str, float]:
    """Bound the errors that a correct kernel may have even if the unfused expression happens to be exact.

    A result is a sum of products. Each product has a rounding error of the type (in 16 bits, P and dS are rounded too)
    and the error of an exponential, which is the error of its argument: the largest score times the epsilon of sums.
    For float64 the reference has the same precision, so the bound allows for its errors in sums of hundreds of terms.
    """
    inputs = case.arguments()
    exact = np.float64 if case.q.dtype == np.float64 else np.float32
    epsilon, sum_epsilon = float(ml_dtypes.finfo(case.q.dtype).eps), float(np.finfo(exact).eps)
    p = reference.forward(case.q, case.k, case.v, **inputs).p
    kept_by = 1.0 if inputs["dropout"] is None else inputs["dropout"]
    group = case.full[-3] // case.k.shape[-3]
    q, dout = (np.abs(x.astype(np.float64)) for x in (case.q, case.dout))
    k, v = (np.repeat(np.abs(x.astype(np.float64)), group, axis=-3) for x in (case.k, case.v))
    scale = abs(q.shape[-1] ** -0.5 if inputs["scale"] is None else inputs["scale"])
    scores = q @ k.swapaxes(-1, -2) * scale
    if inputs["attends"] is not None:
        scores = scores * inputs["attends"]
    size = 1.0 + scores.max(initial=0.0)
    for extra in (inputs["bias"], inputs["sinks"], biases(case)):
        if extra is not None and extra.dtype != bool:
            extra = np.abs(extra.astype(np.float64))
            size += extra[np.isfinite(extra)].max(initial=0.0)
    dp = dout @ v.swapaxes(-1, -2) * kept_by
    extra_delta = 0.0 if dlse is None else np.abs(dlse[..., None])
    ds = p * (dp + (p * dp).sum(axis=-1, keepdims=True) + extra_delta)
    terms = {
        "out": p * kept_by @ v,
        "dq": ds @ k * scale,
        "dk": reference.summed_to(ds.swapaxes(-1, -2) @ q * scale, case.k.shape),
        "dv": reference.summed_to((p * kept_by).swapaxes(-1, -2) @ dout, case.v.shape),
    }
    least = float(ml_dtypes.finfo(case.q.dtype).smallest_subnormal)
    many = 20 if exact == np.float64 else 4
    limits = {n: (epsilon + many * sum_epsilon * size) * x.max(initial=0.0) + least for n, x in terms.items()}
    return limits | {"lse": many * sum_epsilon * size}


def worst(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error; infinities must agree exactly, and NaN is an infinite error."""
    assert got.shape == expected.shape
    got = got.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite]) or not np.isfinite(got[finite]).all():
        return float("inf")
    return float(np.abs(got[finite] - expected[finite]).max(initial=0.0))


def check_close(name: str, got: np.ndarray, expected: np.ndarray, naive: np.ndarray, floor: float) -> None:
    """Check that the error is at most twice that of the unfused expression in the same type, plus a floor."""
    error, allowed = worst(got, expected), worst(naive, expected)
    if np.isinf(allowed):  # the unfused expression overflowed its type
        allowed = floor
    assert error <= 2 * allowed + floor, f"{name}: error {error:.3g}, unfused {allowed:.3g}, floor {floor:.3g}"


def check_forward(case: Case) -> tuple[np.ndarray, np.ndarray]:
    out, lse = forward(case)
    assert out.dtype == case.q.dtype
    exact, naive, floor = reference.forward(case.q, case.k, case.v, **case.arguments()), unfused(case), floors(case)
    check_close("out", out, exact.out, naive["out"], floor["out"])
    check_close("lse", lse, exact.lse, unfused(in_sums(case))["lse"], floor["lse"])
    return out, lse


def in_sums(case: Case) -> Case:
    """Return the same call in the type of its sums, which is the type of lse."""
    exact = np.float64 if case.q.dtype == np.float64 else np.float32
    return Case(*(x.astype(exact) for x in (case.q, case.k, case.v, case.dout)), case.options)


def check_backward(case: Case, dlse: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    out, lse = forward(case)
    gradients = backward(case, out, lse, dlse)
    exact = reference.backward(case.q, case.k, case.v, case.dout, dlse=dlse, **case.arguments())
    naive, floor = unfused(case, dlse), floors(case, dlse)
    for name, got in zip(("dq", "dk", "dv"), gradients, strict=True):
        assert got.dtype == case.q.dtype
        check_close(name, got, getattr(exact, name), naive[name], floor[name])
    return gradients


# Strategies for calls ------------------------------------------------------------------------------


def laid(array: np.ndarray, layout: str) -> np.ndarray:
    """Copy the array into another memory layout, with NaN in the gaps; "one ..." repeats a row or head."""
    n = array.shape
    if layout == "transposed":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "heads inside":
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    if layout == "columns apart":
        spread = np.full((*n[:-1], 3 * n[-1] + 1), np.nan, array.dtype)
        spread[..., 1::3][..., : n[-1]] = array
        return spread[..., 1::3][..., : n[-1]]
    if layout == "rows apart":
        spread = np.full((*n[:-1], n[-1] + 1 + n[-1] % 2), np.nan, array.dtype)  # an odd number of columns
        spread[..., 1 : n[-1] + 1] = array
        return spread[..., 1 : n[-1] + 1]
    if layout == "reversed":
        return np.flip(np.ascontiguousarray(np.flip(array, (-1, -2))), (-1, -2))
    if layout == "one row":
        return np.broadcast_to(array[..., :1, :], n) if n[-2] else array
    if layout == "one head":
        return np.broadcast_to(array[..., :1, :, :], n) if n[-3] else array
    return np.ascontiguousarray(array)


LENGTHS = st.integers(0, 9) | st.sampled_from([15, 16, 17, 31, 33, 47, 48, 49, 63, 65, 96, 97, 130])
WIDTHS = st.integers(1, 9) | st.sampled_from([15, 16, 17, 24, 31, 32, 33, 40, 64, 65])
TILES = st.builds(
    lambda rows, cols, pieces: cpu.Tile(rows, cols, pieces=pieces),
    st.sampled_from([1, 3, 8, 16, 33, 64, 200]),
    st.sampled_from([1, 2, 3, 7, 16, 48, 50, 100]),
    st.sampled_from([1, 1, 2, 5]),
)

EDGES = st.sampled_from([1, 2, 3, 7, 8, 16, 33, 48, 100])
TWO_PASS_TILES = st.builds(cpu.TwoPassTile, *[EDGES] * 4)
SPILL_TILES = st.builds(cpu.SpillTile, st.booleans(), *[EDGES] * 10)


def all_masks(n_q: int, n_k: int, heads: int) -> st.SearchStrategy[rb.Mask]:
    """Masks of every kind and compositions of them, one for all heads or one per head."""
    one = compositions(n_q, n_k).map(lambda pair: pair[0])
    return one | st.lists(one, min_size=heads, max_size=heads).map(rb.Mask.per_head)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(st.sampled_from([(), (), (2,), (2, 3), (0,)]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 5]))
    n_q, n_k, d, d_v = draw(LENGTHS), draw(LENGTHS), draw(WIDTHS), draw(WIDTHS)
    # Scores reach 1e4, where a naive exponential overflows; float16 inputs must not overflow themselves
    size = draw(st.sampled_from([1.0, 1.0, 0.01, 100.0]))

    def array(*shape: int, of: np.dtype = dtype, times: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * times).astype(of)

    heads = kv_heads * group
    shared = draw(
        st.sampled_from([lead, lead, tuple(1 for _ in lead)])
    )  # leading dimensions of K and V, which broadcast
    case = Case(
        array(*lead, heads, n_q, d, times=size),
        array(*shared, kv_heads, n_k, d, times=min(size, 1.0 if dtype == np.float16 else size)),
        array(*shared, kv_heads, n_k, d_v),
        array(*lead, heads, n_q, d_v),
    )
    for name in ("q", "k", "v", "dout"):
        setattr(case, name, laid(getattr(case, name), draw(st.sampled_from(LAYOUTS))))
    options = case.options
    options["mask"] = draw(st.none() | masks if 0 in (n_q, n_k) else st.none() | masks | all_masks(n_q, n_k, heads))
    case.gathers = draw(st.none() | st.booleans())
    options["scale"] = draw(st.sampled_from([None, None, None, 0.3, -0.4, 0.0]))
    options["softcap"] = draw(st.sampled_from([None, None, 2.0, 30.0]))
    if draw(st.booleans()):
        full = case.full
        shape = tuple(1 if draw(st.booleans()) else size for size in full)[draw(st.integers(0, len(full) - 1)) :]
        of = draw(st.sampled_from(["bool", "float32", "float16", "bfloat16", dtype.name]))
        if of == "bool":
            options["bias"] = rng.random(shape) < 0.7
        else:
            bias = array(*shape, of=DTYPES[of], times=2.0)
            bias[rng.random(shape) < 0.1] = -np.inf
            options["bias"] = bias
    if draw(st.sampled_from([False, False, True])):
        sinks = array(heads, of=np.dtype(np.float32), times=2.0)
        sinks[rng.random(heads) < 0.3] = -np.inf
        options["sinks"] = sinks
    if draw(st.sampled_from([False, False, True])):
        shape = draw(st.sampled_from([(heads,), (*lead, heads), (*(1 for _ in lead), heads), (1,)]))
        options["alibi"] = rng.random(shape).astype(draw(st.sampled_from([np.float32, np.float16])))
    if draw(st.sampled_from([False, False, True])):
        options["dropout"], options["seed"] = draw(st.sampled_from([0.1, 0.5, 0.9])), draw(st.integers(0, 2**64 - 1))
    options["schedule"] = draw(st.sampled_from(["auto", "auto", "hybrid", "small_cache"]))
    case.tile = draw(st.none() | (TILES | TWO_PASS_TILES if options["schedule"] == "auto" else SPILL_TILES))
    case.threads = draw(st.sampled_from([1, 2, 5]))
    return case
