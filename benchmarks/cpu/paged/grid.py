"""The cases: batches of 1 to 64, 512 to 65,536 keys, GQA, MHA, MQA, three widths, and several types and n_q."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.cpu.paged.calls import HEADS_OUTSIDE, ROWS_OUTSIDE, Call
from benchmarks.cpu.paged.contenders import GATHERED
from benchmarks.cpu.paged.measures import (
    MLA_ROOF,
    OVER_GATHER_MLA,
    OVER_ROOF,
    Measure,
    compared,
    layouts,
    scaling,
    sharing,
    skewed,
)

FP32, BF16, FP16 = "float32", "bfloat16", "float16"
MHA: dict[str, Any] = {"kv_heads": 32}
MLA: dict[str, Any] = {"heads": 128, "kv_heads": 1, "d": 576, "d_v": 512}
HEADS: dict[str, Any] = {"layout": HEADS_OUTSIDE}
LONG, SHORT_ONES = 57_376, 544  # keys of one long and 15 short sequences: 16 x 4096 in all
PREFIX, OWN = 4096, 64  # keys that 16 sequences share, and each one's own keys


def equal(batch: int, n_k: int, dtype: str, page: int, **rest: Any) -> Call:
    return Call((n_k,) * batch, dtype, page=page, **rest)


SKEWED = (LONG, *(SHORT_ONES,) * 15)

DECODING = (  # cases that fit in the last cache come first
    equal(1, 512, FP32, 16),
    equal(8, 512, FP32, 32, d=64),
    equal(4, 1024, BF16, 16, **HEADS),
    equal(1, 65_536, FP32, 16),
    equal(16, 4096, FP32, 32, **HEADS),
    equal(64, 2048, FP32, 16, d=64),
    equal(4, 4096, FP32, 32, **MHA),
    equal(1, 16_384, FP32, 16, d=64, **MHA, **HEADS),
    Call(SKEWED, FP32),
    equal(1, 65_536, BF16, 32, **HEADS),
    equal(64, 512, BF16, 16),
    equal(16, 8192, BF16, 16),
    equal(8, 4096, BF16, 32, d=64, **MHA),
    Call(SKEWED, BF16, page=32, **HEADS),
    equal(16, 4096, FP16, 16),
    equal(64, 512, FP16, 32, d=64, **MHA, **HEADS),
)
TREES = (
    equal(16, 4096, FP32, 16, n_q=4, tree=True),
    equal(4, 4096, FP32, 16, n_q=4, tree=True, **MHA),
    equal(16, 4096, BF16, 32, n_q=4, tree=True, **HEADS),
    equal(8, 4096, FP16, 16, n_q=4, tree=True, d=64, **MHA),
)
CHUNKS = (
    equal(1, 16_384, FP32, 16, n_q=256),
    equal(4, 2048, FP32, 32, n_q=256, d=64, **MHA, **HEADS),
    equal(1, 16_384, BF16, 32, n_q=256, **HEADS),
    equal(16, 512, BF16, 16, n_q=256),
    equal(2, 4096, FP16, 16, n_q=256, d=64),
)
MLAS = (
    equal(1, 65_536, FP32, 16, **MLA),
    equal(16, 4096, FP32, 32, **MLA),
    equal(1, 65_536, BF16, 16, **MLA),
    equal(64, 1024, BF16, 16, **MLA),
    equal(16, 4096, FP16, 16, **MLA),
    equal(4, 4096, BF16, 16, n_q=4, **MLA),
)
SCALED = (equal(4, 1024, BF16, 16), equal(1, 65_536, FP32, 16), equal(1, 65_536, BF16, 16), equal(16, 4096, FP32, 32))
PREFIXES = tuple(
    equal(16, PREFIX + OWN, dtype, 16, shared=PREFIX, **heads) for heads in (MHA, {}) for dtype in (FP32, BF16)
)
QUICK = {DECODING[0], DECODING[2], DECODING[7], DECODING[10], TREES[2], CHUNKS[3], MLAS[3], SCALED[0], PREFIXES[3]}


def measures() -> list[Measure]:
    """All rows, in the order of the results."""
    of_mla = {GATHERED: OVER_GATHER_MLA, OVER_ROOF: MLA_ROOF}
    rows = [
        *(Measure("decoding", {"": call}, compared) for call in DECODING),
        *(Measure("tree", {"": call}, compared) for call in TREES),
        *(Measure("chunk", {"": call}, compared) for call in CHUNKS),
        *(Measure("MLA", {"": call}, compared, limits=of_mla) for call in MLAS),
        *(_skewed(dtype) for dtype in (FP32, BF16)),
        *(Measure("scaling", {"": call}, scaling) for call in SCALED),
        *(Measure("prefix", {"": call}, sharing) for call in PREFIXES),
        *(_layouts(dtype, d) for dtype, d in ((FP32, 128), (BF16, 64))),
    ]
    return [replace(row, quick=row.call in QUICK) for row in rows]


def _skewed(dtype: str) -> Measure:
    return Measure("skewed", {"skewed": Call(SKEWED, dtype), "balanced": equal(16, 4096, dtype, 16)}, skewed)


def _layouts(dtype: str, d: int) -> Measure:
    calls = {name: equal(16, 4096, dtype, 16, d=d, layout=name) for name in (ROWS_OUTSIDE, HEADS_OUTSIDE)}
    return Measure("layouts", calls, layouts)
