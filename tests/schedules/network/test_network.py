"""Network schedules: correct results, counts equal to closed forms, and transfers of needed rows only."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from redblue import Mask, Problem, RedblueError, UnknownName
from redblue.lab import network as simulation
from redblue.lab import reference
from redblue.machine.errors import CapacityError
from redblue.schedules import network
from redblue.schedules.network import Grid, closed_form
from redblue.schedules.network.placement import contiguous, striped, zigzag
from support.examples import thorough

N = 19
RANDOM = np.random.default_rng(0)
MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "window": Mask.sliding_window(3),
    "documents": Mask.documents([5, 11, 3]),
    "scattered": Mask.from_dense(RANDOM.random((N, N)) < 0.15),
}


def problem(mask=None, kv_heads=4, **sizes):
    mask = Mask.full() if mask is None else mask
    fields = {"n_q": N, "n_k": N, "d": 3, "d_v": 2, "heads": 4, "kv_heads": kv_heads, "batch": 2, **sizes}
    return Problem(**fields, mask=mask)


def backward_of(layout):
    return network.Layout(
        replace(layout.problem, direction="backward"), layout.grid, layout.queries, layout.keys, layout.travel
    )


def layouts(processes, placement="contiguous", **options):
    """Every layout of every schedule that can divide the heads."""
    case = problem(**options)
    for name, schedule in network.SCHEDULES.items():
        if any(grid.divides(case) for grid in schedule.grids(processes)):
            yield from network.layouts(name, case, processes, placement)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("processes", [1, 2, 3, 4, thorough(6)])
def test_results_are_those_of_one_process(processes, mask):
    placement = {1: "contiguous", 2: "zigzag", 3: "striped", 4: "zigzag", 6: "contiguous"}[processes]
    kv_heads = {1: 4, 2: 1, 3: 2, 4: 2, 6: 4}[processes]
    q, k, v, dout = (
        RANDOM.normal(size=(2, heads, N, columns)) for heads, columns in ((4, 3), (kv_heads, 3), (kv_heads, 2), (4, 2))
    )
    attends = MASKS[mask].to_dense(N, N)
    right = reference.forward(q, k, v, attends)
    gradients = reference.backward(q, k, v, dout, attends)
    for layout in layouts(processes, placement, mask=MASKS[mask], kv_heads=kv_heads):
        got, net = simulation.simulate(layout, q=q, k=k, v=v)
        np.testing.assert_allclose(got["out"], right.out, atol=1e-12)
        np.testing.assert_allclose(got["lse"][..., 0], right.lse, atol=1e-12)
        inputs = {"lse": right.lse[..., None], "delta": (dout * right.out).sum(-1, keepdims=True), "dout": dout}
        got, net_backward = simulation.simulate(backward_of(layout), q=q, k=k, v=v, **inputs)
        for name in ("dq", "dk", "dv"):
            np.testing.assert_allclose(got[name], getattr(gradients, name), atol=1e-12, err_msg=f"{name} {layout.grid}")
        for counted, computed in ((layout, net), (backward_of(layout), net_backward)):
            traffic = network.count(counted).traffic
            assert all((a == b).all() for a, b in zip(traffic, computed.traffic, strict=True))


@pytest.mark.parametrize("placement", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("processes", [1, 2, 3, thorough(4), 5, 8, thorough(12)])
def test_closed_forms_equal_counts(processes, placement):
    for kv_heads in (1, 2, 4):
        for forward_layout in layouts(processes, placement, kv_heads=kv_heads, n_q=17):
            for layout in (forward_layout, backward_of(forward_layout)):
                traffic, words = network.count(layout).traffic, closed_form.words(layout)
                assert words.sent.tolist() == traffic.sent.tolist(), (layout.grid, layout.travel)
                assert words.received.tolist() == traffic.received.tolist(), (layout.grid, layout.travel)


def test_leading_terms():
    """Words per process by the papers' formulas: ring (P - 1) / P n (d + d_v), mesh about 4 n d / sqrt(P)."""
    n, d, processes = 1 << 12, 64, 16
    large = Problem(n_q=n, n_k=n, d=d)
    ring, gathered = (network.layouts(name, large, processes)[0] for name in ("ring", "all_gather"))
    assert closed_form.words(ring).most_words == closed_form.words(gathered).most_words == n * 2 * d * 15 // 16
    mesh = network.fewest_words(network.layouts("mesh", large, processes))
    assert mesh.grid == Grid(1, 4, 4)
    assert closed_form.words(mesh).most_words == n // 16 * 3 * (d + 2 * d + d + 1)
    heads = replace(large, heads=16)
    exchanged = closed_form.words(network.layouts("head_parallel", heads, processes)[0])
    assert exchanged.most_words == n * 15 // 16 * (4 * d + 1)


def test_only_needed_keys_are_sent():
    """With a window and contiguous parts, a process needs only the keys just before its own; a ring sends more."""
    window = problem(Mask.sliding_window(2), n_q=40, n_k=40, heads=1, kv_heads=1, batch=1)
    gathered, ring = (network.layouts(name, window, 4)[0] for name in ("all_gather", "ring"))
    assert network.count(gathered).traffic.received.tolist() == [0, *[2 * (3 + 2)] * 3]
    assert network.count(ring).traffic.words == network.count(gathered).traffic.words
    documents = problem(Mask.documents([10] * 4), n_q=40, n_k=40, heads=1, kv_heads=1, batch=1)
    assert network.count(network.layouts("ring", documents, 4)[0]).traffic.words == 0


def test_capacity():
    layout = network.layouts("ring", problem(), 4)[0]
    peak = int(network.count(layout).traffic.peak.max())
    network.count(layout, capacity=peak)
    with pytest.raises(CapacityError, match="process"):
        network.count(layout, capacity=peak - 1)


def test_ring_holds_less_than_all_gather():
    ring, gathered = (network.layouts(name, problem(n_q=64, n_k=64), 8)[0] for name in ("ring", "all_gather"))
    assert 2 * network.count(ring).traffic.peak.max() < network.count(gathered).traffic.peak.max()


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_a_layout_holds_few_bytes_per_token(mask):
    """Consecutive rows share memory: a layout of a long sequence may not be as large as the process's arrays."""
    n = 1 << 14
    tracemalloc.start()
    layout = network.fewest_words(network.layouts("mesh", problem(MASKS[mask], n_q=n, n_k=n), 16))
    network.count(layout)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 32 * n


@pytest.mark.parametrize("n", [0, 1, 7, 16])
def test_placements_hold_every_token_once(n):
    for make in (contiguous, zigzag, striped):
        placement = make(n, 4)
        assert sorted(np.concatenate(placement.positions).tolist()) == list(range(n))
        assert placement.n == n
        assert placement.world_size == 4
        assert all((np.diff(own) > 0).all() for own in placement.positions)


@pytest.mark.parametrize("name", network.SCHEDULES)
def test_own_queries_says_whether_every_grid_keeps_them(name):
    grids = network.SCHEDULES[name].grids(6)
    assert network.SCHEDULES[name].own_queries == all(grid.head_parts == grid.cols == 1 for grid in grids)


def test_refusals():
    with pytest.raises(UnknownName, match="unknown network schedule 'rings'"):
        network.layouts("rings", problem(), 2)
    with pytest.raises(UnknownName, match="unknown placement 'zig'"):
        network.layouts("ring", problem(), 2, "zig")
    with pytest.raises(RedblueError, match="4 heads with 4 key heads cannot be divided among 3 processes"):
        network.layouts("head_parallel", problem(), 3)
    with pytest.raises(RedblueError, match="the placement is for 2 processes, but there are 3"):
        network.layouts("ring", problem(), 3, contiguous(N, 2))
    with pytest.raises(RedblueError, match="the placement is for 5 tokens, but there are 19"):
        network.layouts("ring", problem(), 2, contiguous(5, 2))
    with pytest.raises(RedblueError, match="placement must be contiguous, zigzag, striped, or the result"):
        network.layouts("ring", problem(), 2, 3)  # pyright: ignore
    gradient = problem(direction="gradient_x", d_v=3)
    with pytest.raises(RedblueError, match="directions forward and backward, not gradient_x"):
        network.layouts("ring", gradient, 2)
