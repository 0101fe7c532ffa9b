"""The spaces that property-based tests draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from redblue import Mask, Problem
from redblue.schedules.schedule import Schedule

SIZES = st.integers(1, 13)  # 1 and primes included

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
def problems(draw: st.DrawFn, direction: str | None = None, mask: st.SearchStrategy[Mask] = masks) -> Problem:
    kv_heads = draw(st.integers(1, 2))
    return Problem(
        n_q=draw(SIZES),
        n_k=draw(SIZES),
        d=draw(st.integers(1, 9)),
        d_v=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        dtype="float64",
        mask=draw(mask),
        direction=direction or draw(st.sampled_from(["forward", "backward"])),
    )


@st.composite
def tile_edges(draw: st.DrawFn, schedule: Schedule, problem: Problem) -> dict[str, int]:
    """Legal tiles, larger than the arrays too; slices deeper than 1 divide the tiles they cut."""
    edges = {edge: draw(st.integers(1, 11)) for edge in schedule.direction(problem).edges}
    if "depth" in edges:
        edges["depth"] = draw(st.integers(1, 3))
        edges["rows"] = edges["depth"] * draw(st.integers(1, 4))
        edges["cols"] = edges["depth"] * draw(st.integers(1, 4))
    return edges
