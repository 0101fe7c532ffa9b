"""Hypothesis draws calls of attention: shapes, memory layouts, masks, options and tiles."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import redblue as rb
from redblue.kernels.cpu import call as cpu
from support.attention import DTYPES, Case
from support.mask_oracle import compositions
from support.spaces import masks

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
    plane = compositions(n_q, n_k).map(lambda pair: pair[0])
    return plane | st.lists(plane, min_size=heads, max_size=heads).map(rb.Mask.per_head)


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
