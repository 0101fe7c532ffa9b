"""Every schedule as a game of pebbles: the referee accepts it, with the counting machine's loads and stores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, schedules, trace
from redblue.lab import counts
from redblue.machine import MachineError, Tracing
from redblue.machine.tracing import SPARE
from redblue.pebble import COMPUTE, DELETE, LOAD, STORE, Game, IllegalMove, Rules, Unfinished, check, least_red
from support.examples import examples, thorough
from support.spaces import PASSES, covered, tile_edges

EVERY_PASS = pytest.mark.parametrize(("schedule", "direction"), PASSES)


def agrees(schedule, problem, **capacity):
    traced = trace(schedule, problem, **capacity)
    counted = counts.run(schedule, problem.one_stream(), **capacity)
    assert (traced.verdict.loads, traced.verdict.stores) == (counted.reads, counted.writes)
    assert traced.verdict.peak <= counted.peak + SPARE
    assert traced.red <= max(counted.peak + SPARE, least_red(traced.graph, traced.rules))
    return traced


@EVERY_PASS
@examples(8)
@given(data=st.data())
def test_any_schedule_with_any_mask_and_tiles_is_a_legal_game(schedule, direction, data):
    problem = data.draw(covered(schedule, direction))
    traced = agrees(schedule.name, problem, tiles=data.draw(tile_edges(schedule, problem)))
    once = Rules("one-shot", constants=traced.rules.constants)
    assert check(traced.graph, traced.moves, traced.red, once) == traced.verdict  # no schedule recomputes a node


@pytest.mark.thorough
@EVERY_PASS
def test_larger_sizes(schedule, direction):
    mask = Mask.full() if schedule.full_only else Mask.sliding_window(left=6, right=1)
    size = 20 if schedule.full_only or direction == "gradient_x" else 40
    agrees(schedule.name, Problem(size, size, 8, direction=direction, mask=mask), words=700)


@pytest.mark.parametrize("name", ["flash", thorough("small_cache")])
def test_64_queries_and_keys_of_8_features(name):
    agrees(name, Problem(64, 64, 8), words=400)


def ancestors(graph, v):
    """The inputs that a node depends on."""
    visited, stack = set(), [v]
    while stack:
        for p in graph.parents_of(stack.pop()).tolist():
            if p not in visited:
                visited.add(p)
                stack.append(p)
    return {graph.labels[u] for u in visited if not len(graph.parents_of(u))}


@pytest.mark.parametrize("name", ["flash", "flash1", "hybrid", "small_cache", "standard"])
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(1, 0)], ids=repr)
def test_outputs_depend_on_what_attention_says(name, mask):
    n, d = 5, 2
    graph = trace(name, Problem(n, n, d, mask=mask), words=60).graph
    attends = mask.to_dense(n, n)
    for i in range(n):
        keys = np.flatnonzero(attends[i])
        pairs = {f"q[{i},{f}]" for f in range(d)} | {f"k[{j},{f}]" for j in keys for f in range(d)}
        for c in range(d):
            own = pairs | {f"v[{j},{c}]" for j in keys}
            assert ancestors(graph, graph.numbers[f"out[{i},{c}]"]) == own


def test_a_product_is_a_chain_of_multiply_adds():
    machine = Tracing()
    x, y = machine.input("x", (1, 3)), machine.output("y", (1, 1))
    a, total = machine.load(x[range(1)]), machine.zeros("total", 1, 1)
    total += a @ a.T
    machine.store(y[range(1)], total)
    graph, moves, _ = machine.recording()
    assert graph.labels == ("x[0,0]", "x[0,1]", "x[0,2]", "total#1", "total#2", "y[0,0]")
    assert [graph.parents_of(v).tolist() for v in (3, 4, 5)] == [[0], [3, 1], [4, 2]]
    kinds = [move.kind for move in moves]
    assert kinds == [LOAD] * 3 + [COMPUTE, COMPUTE, DELETE, COMPUTE, DELETE, STORE]


def test_what_adds_nothing_leaves_words_as_they_are():
    machine = Tracing()
    x, y = machine.input("x", (2,)), machine.output("y", (4,))
    a = machine.load(x[range(2)])
    copy = machine.new("copy", a * 1 + 0)  # words of a, not new nodes
    machine.store(y[range(2)], copy)
    machine.store(y[range(2, 3)], machine.new("double", a[:1] * 2 + 0))
    machine.store(y[range(3, 4)], machine.new("double", 0 + a[:1] * 2))
    graph, _, _ = machine.recording()
    assert graph.labels == ("x[0]", "x[1]", "y[2]", "y[3]")
    assert [graph.parents_of(v).tolist() for v in (2, 3)] == [[0], [0]]


def test_constants_are_stored_without_being_loaded_or_computed():
    machine = Tracing()
    y = machine.output("y", (2,))
    machine.store(y[range(2)], machine.zeros("nothing", 2))
    y_tile = machine.load(y[range(2)])
    y_tile += 1
    machine.store(y[range(2)], y_tile)
    graph, moves, constants = machine.recording()
    assert constants == (0, 1, 2, 3)
    assert graph.labels == ("y[0]@1", "y[1]@1", "y[0]", "y[1]")
    verdict = check(graph, moves, 1, Rules(constants=constants))
    assert (verdict.loads, verdict.stores, verdict.peak) == (2, 4, 1)


@pytest.mark.parametrize("change", [lambda x: x - x[:1], lambda x: x * x.sum(axis=0)], ids=["word", "sum"])
def test_words_that_are_overwritten_too_early_are_refused(change):
    """NumPy would give a right result, but only by a copy that is in no tile."""
    machine = Tracing()
    tile = machine.load(machine.input("x", (2,))[range(2)])
    with pytest.raises(MachineError, match=r"put the value into a tile of its own with new\(\)"):
        tile[...] = change(tile)


# The cheats ---------------------------------------------------------------------------------------

TRACED = trace("flash", Problem(4, 4, 2, mask=Mask.causal()), tiles={"rows": 2, "cols": 2})


def played(moves):
    return check(TRACED.graph, Game.of(moves), TRACED.red, TRACED.rules)


def first(kind, after=0):
    return next(i for i, move in enumerate(TRACED.moves) if move.kind == kind and i >= after)


def test_read_without_load():
    moves = list(TRACED.moves)
    missing = TRACED.graph.labels[moves.pop(first(LOAD)).node]
    with pytest.raises(IllegalMove, match=r"q\[0,0\]") as broken:
        played(moves)
    assert (broken.value.rule, broken.value.missing) == ("parents", (missing,))


def test_use_after_free():
    moves = list(TRACED.moves)
    place = first(LOAD)
    moves.insert(first(COMPUTE), moves[place]._replace(kind=DELETE))
    with pytest.raises(IllegalMove, match=r"not red: q\[0,0\]") as broken:
        played(moves)
    assert broken.value.rule == "parents"


def test_never_stored():
    moves = list(TRACED.moves)
    label = TRACED.graph.labels[moves.pop(first(STORE)).node]
    with pytest.raises(Unfinished) as short:
        played(moves)
    assert short.value.sinks == (label,)


def test_one_word_too_many():
    with pytest.raises(IllegalMove, match="capacity") as broken:
        check(TRACED.graph, TRACED.moves, TRACED.red - 1, TRACED.rules)
    assert broken.value.rule == "capacity"


def test_another_graph():
    other = trace("flash", Problem(4, 4, 2), tiles={"rows": 2, "cols": 2})
    with pytest.raises(RedblueError):
        check(other.graph, TRACED.moves, TRACED.red, TRACED.rules)


def test_too_long_to_write_down():
    with pytest.raises(RedblueError, match="268,435,456 multiply-adds"):
        trace("flash", Problem(2**11, 2**11, 32), words=1000)


def test_unknown_schedules():
    with pytest.raises(RedblueError, match="unknown schedule"):
        trace("flesh", Problem(4, 4, 2), words=100)
    assert schedules.get("flash").name == TRACED.count.schedule
