"""The spaces that property-based tests draw from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from redblue import Mask, Problem
from redblue.problem import DIRECTIONS
from redblue.schedules import SCHEDULES
from redblue.schedules.schedule import Schedule

# Every schedule with each of its directions. Problems of paged caches are in tests/support/paged_problems.py.
PASSES = [
    pytest.param(schedule, direction, id=f"{schedule.name}-{direction}")
    for schedule in SCHEDULES.values()
    for direction in schedule.passes
    if direction in DIRECTIONS
]

SIZES = st.integers(1, 13)  # includes 1 and primes

masks = st.one_of(
    st.just(Mask.full()),
    st.builds(Mask.causal, st.sampled_from(["top-left", "bottom-right"])),
    st.builds(
        Mask.sliding_window,
        st.one_of(st.none(), st.integers(0, 15)),
        st.one_of(st.none(), st.integers(0, 4)),
        st.sampled_from(["top-left", "bottom-right"]),
    ),
)


@st.composite
def block_masks(draw: st.DrawFn, n_q: int, n_k: int) -> Mask:
    """Draw block masks that fit the sizes, with blocks from 1 x 1 to larger than the mask."""
    bq, bk = draw(st.integers(1, n_q + 1)), draw(st.integers(1, n_k + 1))
    return Mask.blocks(draw(arrays(bool, (-(-n_q // bq), -(-n_k // bk)))), block=(bq, bk))


@st.composite
def problems(draw: st.DrawFn, direction: str | None = None, mask: st.SearchStrategy[Mask] = masks) -> Problem:
    kv_heads = draw(st.integers(1, 2))
    direction = direction or draw(st.sampled_from(["forward", "backward"]))
    n_q, n_k = draw(SIZES), draw(SIZES)
    return Problem(
        n_q=n_q,
        n_k=n_k,
        d=draw(st.integers(1, 9)),
        d_v=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * (1 if direction == "gradient_x" else draw(st.integers(1, 3))),
        kv_heads=kv_heads,
        dtype="float64",
        mask=draw(masks | block_masks(n_q, n_k) if mask is masks else mask),
        direction=direction,
    )


def covered(schedule: Schedule, direction: str) -> st.SearchStrategy[Problem]:
    """Draw problems that the schedule covers."""
    return problems(direction, st.just(Mask.full()) if schedule.full_only else masks)


@st.composite
def tile_edges(draw: st.DrawFn, schedule: Schedule, problem: Problem) -> dict[str, int]:
    """Draw legal tile edges, some larger than the arrays; rows and cols are multiples of the depth."""
    edges = {edge: draw(st.integers(1, 11)) for edge in schedule.direction(problem).edges}
    if "depth" in edges:
        edges["depth"] = draw(st.integers(1, 3))
        edges["rows"] = edges["depth"] * draw(st.integers(1, 4))
        edges["cols"] = edges["depth"] * draw(st.integers(1, 4))
    if "chunk" in edges:
        step = math.lcm(*(edges[edge] for edge in ("rows", "depth", "dq_rows")))
        edges["chunk"] = draw(st.sampled_from([step, 2 * step, max(1, problem.one_stream().n_q)]))
    if "span" in edges:
        edges["span"] = draw(st.sampled_from([edges["cols"], 2 * edges["cols"], max(1, problem.n_k)]))
    return edges


def plane(q):
    """Return the mask of lines y = s x + b over points (x, y) modulo a prime q: two lines share at most one point."""
    s, b, x = np.meshgrid(*3 * [np.arange(q)], indexing="ij")
    attends = np.zeros((q * q, q * q), bool)
    attends[(s * q + b).ravel(), (x * q + (s * x + b) % q).ravel()] = True
    return Mask.from_dense(attends)
