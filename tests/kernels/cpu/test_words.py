"""CPU kernels move exactly the words of their schedules between tiles and arrays."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, count
from redblue.base.dtypes import DTYPE_CODES
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.mask_form import attended
from redblue.kernels.sizes import Sizes
from redblue.masks.rules.bands import Window
from support.attention import DTYPES, described, drawn, running
from support.mask_oracle import compositions
from support.spaces import masks

LENGTHS = st.integers(1, 70) | st.sampled_from([127, 128, 129, 200])


@st.composite
def problems(draw, direction):
    kv_heads = draw(st.integers(1, 2))
    sizes = [draw(LENGTHS), draw(LENGTHS), draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(1, 2))]
    heads, dtype = kv_heads * draw(st.integers(1, 3)), draw(st.sampled_from(list(DTYPES)))
    mask = draw(masks | compositions(*sizes[:2]).map(lambda pair: pair[0]))
    return Problem(*sizes, heads, kv_heads, dtype, mask, direction)


def moved(row, problem, tile, gathers=False):
    """Run the compiled pass; return the words that its probe counts."""
    p, dtype = problem, DTYPES[problem.dtype]
    sums = np.float64 if p.dtype == "float64" else np.float32
    rng = np.random.default_rng(0)

    def array(heads, n, d, of=dtype):
        return rng.standard_normal((p.batch, heads, n, d)).astype(of)

    q, dout = array(p.heads, p.n_q, p.d), array(p.heads, p.n_q, p.d_v)
    k, v = array(p.kv_heads, p.n_k, p.d), array(p.kv_heads, p.n_k, p.d_v)
    out, lse = np.empty_like(dout), np.empty((*q.shape[:-1], 1), sums)
    sizes = Sizes((p.batch,), p.kv_heads, p.group, p.n_q, p.n_k, p.d, p.d_v)
    with running(row, gathers=gathers):
        mask = attended(p.mask, sizes, p.dtype)
    common = {"mask": mask, "scale": 0.1, "threads": 2, "tile": tile, "row": row}
    forward = cpu.forward(sizes, p.dtype, *(described(x) for x in (q, k, v, out, lse)), **common)
    if p.direction == "forward":
        return forward
    written = [np.empty_like(x) for x in (q, k, v, lse)]
    return cpu.backward(sizes, p.dtype, *(described(x) for x in (q, k, v, out, lse, dout, *written)), **common)


DRAWN_LESS = drawn(25)  # fewer examples for slow tests


def expected(schedule, problem, rows, cols):
    counted = count(schedule, problem, tiles={"rows": rows, "cols": cols})
    return counted.reads, counted.writes


@drawn()
@given(problem=problems("forward"), rows=st.integers(1, 150), cols=st.integers(1, 150))
def test_forward_moves_what_flash_moves(isa, problem, rows, cols):
    measured = moved(isa, problem, cpu.Tile(rows, cols))
    if not isinstance(problem.mask.rule, Window):  # widen to whole panels
        lanes = isa.lanes(DTYPE_CODES[problem.dtype])
        rows = -(-rows // lanes) * lanes
    assert measured == expected("flash", problem, rows, cols)


@drawn()
@given(problem=problems("backward"), cols=st.integers(1, 150))
def test_backward_moves_what_flash_onepass_moves(isa, problem, cols):
    rows = isa.lanes(DTYPE_CODES[problem.dtype])
    assert moved(isa, problem, cpu.Tile(rows, cols)) == expected("flash_onepass", problem, rows, cols)


@drawn()
@given(problem=problems("backward"), edges=st.tuples(*[st.integers(1, 150)] * 3))
def test_two_passes_move_what_flash_moves(isa, problem, edges):
    """A mask of listed runs is counted as if widened to whole panels of stacked rows."""
    lanes, (rows, cols, dkv_cols) = isa.lanes(DTYPE_CODES[problem.dtype]), edges
    measured = moved(isa, problem, cpu.TwoPassTile(rows, cols, lanes, dkv_cols))
    if not isinstance(problem.mask.rule, Window):
        rows = -(-rows // lanes) * lanes
        dense = np.repeat(problem.mask.to_dense(problem.n_q, problem.n_k), problem.group, axis=0)
        panels = np.logical_or.reduceat(dense, np.arange(0, len(dense), lanes), axis=0)
        widened = Mask.from_dense(np.repeat(panels, lanes, axis=0)[: len(dense)])
        streams, problem = problem.batch * problem.kv_heads, replace(problem.one_stream(), mask=widened)
        measured = tuple(words // streams for words in measured)
    counted = count("flash", problem, tiles=cpu.TwoPassTile(rows, cols, lanes, dkv_cols).edges("backward"))
    assert measured == (counted.reads, counted.writes)


@pytest.mark.parametrize("schedule", cpu.SPILLED)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@DRAWN_LESS
@given(data=st.data())
def test_spilling_kernels_move_the_words_of_their_schedules(isa, direction, schedule, data):
    """The mask is widened to whole slices of stacked rows and of keys."""
    problem = data.draw(problems(direction))
    lanes, times = isa.lanes(DTYPE_CODES[problem.dtype]), st.integers(1, 3)
    vector = isa.vector_bytes // (8 if problem.dtype == "float64" else 4)
    panel = data.draw(st.sampled_from([vector, lanes])) if isinstance(problem.mask.rule, Window) else lanes
    depth = panel * data.draw(st.integers(1, 2))
    rows, out_rows = depth * data.draw(times), panel * data.draw(times)
    others = [data.draw(st.integers(1, 90)) for _ in range(5)]
    chunk = math.lcm(rows, out_rows) * data.draw(times)
    tile = cpu.SpillTile(schedule == "hybrid", rows, depth * data.draw(times), depth, out_rows, *others, chunk)

    dense = np.repeat(problem.mask.to_dense(problem.n_q, problem.n_k), problem.group, axis=0)
    slices = [np.arange(0, length, depth) for length in dense.shape]
    live = np.logical_or.reduceat(np.logical_or.reduceat(dense, slices[0], axis=0), slices[1], axis=1)
    widened = np.repeat(np.repeat(live, depth, axis=0), depth, axis=1)[: dense.shape[0], : dense.shape[1]]
    own_stream = replace(problem.one_stream(), mask=Mask.from_dense(widened))
    counted = count(schedule, own_stream, tiles=tile.edges(direction))
    streams = problem.batch * problem.kv_heads
    assert moved(isa, problem, tile) == (streams * counted.reads, streams * counted.writes)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@DRAWN_LESS
@given(data=st.data())
def test_gathering_moves_what_its_schedule_moves(isa, direction, data):
    problem = data.draw(problems(direction))
    if isinstance(problem.mask.rule, Window):  # a band is never gathered
        dense = problem.mask.to_dense(problem.n_q, problem.n_k)
        problem = replace(problem, mask=Mask.from_dense(dense))
    counted = count("gather", problem, words=10**9)
    assert moved(isa, problem, cpu.Tile(64, 48), gathers=True) == (counted.reads, counted.writes)


def test_a_causal_forward_pass_by_hand(isa):
    # Rows 0-1 attend 2 keys, rows 2-3 attend 4. Each block reads its queries and these keys and values, and writes
    # out and lse.
    problem = Problem(4, 4, 3, 5, mask=Mask.causal(), dtype="float32")
    assert moved(isa, problem, cpu.Tile(2, 2)) == (4 * 3 + (2 + 4) * (3 + 5), 4 * (5 + 1))
