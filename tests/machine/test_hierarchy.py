"""Caches, compared with an independent simulator, with exhaustive search, and with results by hand."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redblue import Problem, RedblueError, list_memories, memory
from redblue.catalogue.memories import Level, Memory
from redblue.lab.simulation import simulate
from redblue.machine import CacheLevel, belady, caches_of, play
from redblue.machine.hierarchy import DISCARD, OVERWRITE, READ, WRITE, Trace
from support.examples import examples
from support.lines import figures, level


# The independent simulator ---------------------------------------------------------------------
@pytest.fixture(scope="module")
def libcachesim():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of its dependencies
        return pytest.importorskip(
            "libcachesim", reason="NOT COMPARED with an independent simulator: pip install libcachesim"
        )


def hits_of(libcachesim, policy, lines, capacity):
    """The hits of objects of size 1 in libcachesim's cache with this policy."""
    never = 2**62
    nearest, following = {}, [never] * len(lines)
    for i in reversed(range(len(lines))):
        following[i] = nearest.get(lines[i], never)
        nearest[lines[i]] = i
    cache, hits = getattr(libcachesim, policy)(capacity, hashpower=10), 0
    for i, line in enumerate(lines):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = int(line), 1, i
        request.next_access_vtime = following[i]
        hits += cache.get(request)
    return hits


def random_lines(seed, n=4000):
    """A mixture of uniform, skewed and scanning accesses."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(0, 60, n), np.minimum(rng.zipf(1.3, n), 200), np.arange(n) % 45
    return np.choose(rng.integers(0, 3, n), parts)


@pytest.mark.parametrize("capacity", [1, 2, 7, 32, 59, 150])
@pytest.mark.parametrize("seed", range(3))
def test_lru_equals_libcachesim(libcachesim, seed, capacity):
    lines = random_lines(seed)
    (traffic,) = play(Trace.of(lines), [level(capacity)])
    assert traffic.hits == hits_of(libcachesim, "LRU", lines.tolist(), capacity)


@pytest.mark.parametrize(("sets", "ways"), [(4, 2), (8, 8), (3, 5), (64, 1)])
def test_each_set_is_an_lru_of_libcachesim(libcachesim, sets, ways):
    lines = random_lines(7)
    (traffic,) = play(Trace.of(lines), [level(sets * ways, ways)])
    by_set = (lines[lines % sets == s].tolist() for s in range(sets))
    assert traffic.hits == sum(hits_of(libcachesim, "LRU", part, ways) for part in by_set)


@pytest.mark.parametrize("capacity", [1, 2, 7, 32, 59, 150])
@pytest.mark.parametrize("seed", range(3))
def test_belady_equals_libcachesim(libcachesim, seed, capacity):
    lines = random_lines(seed)
    assert belady(Trace.of(lines), capacity).hits == hits_of(libcachesim, "Belady", lines.tolist(), capacity)


# By hand, and by exhaustive search -------------------------------------------------------------
def test_two_levels_by_hand():
    # Level 1 holds two lines, level 2 three (*: dirty). Line 0 is overwritten, so level 1 holds it without a fill.
    trace = Trace.of([0, 1, 2, 0, 3, 1], [OVERWRITE, READ, READ, READ, READ, WRITE])
    first, second = play(trace, [level(2), level(3, name="L2")])
    # 0: held without a fill, dirty. 1: filled. 2: filled (level 2: 1, 2), evicts 0, written back (level 2: 1, 2, 0*).
    # 0: filled from level 2 (hit: 1, 2, 0*), evicts 1, clean. 3: filled (level 2 evicts 1: 2, 0*, 3), evicts 2. 1:
    # filled to be changed in part (level 2 evicts 2: 0*, 3, 1), evicts 0, clean here. End: 1 is written back.
    assert figures(first) == (0, 6, 5, 2, 0)
    # Level 2 sees the reads 1, 2, 0, 3, 1 and the write-backs 0 and, at the end, 1. Write-backs need no fill.
    assert figures(second) == (2, 5, 4, 2, 0)
    assert (first.words, second.words, first.line_words) == (7, 6, 1)


def test_write_back_by_hand():
    one_line = [level(1)]
    assert figures(play(Trace.of([5, 5, 5], [WRITE, READ, WRITE]), one_line)[0]) == (2, 1, 1, 1, 0)  # dirty once
    assert figures(play(Trace.of([5, 6, 5], [WRITE, READ, READ]), one_line)[0]) == (
        0,
        3,
        3,
        1,
        0,
    )  # clean the second time
    assert figures(play(Trace.of([5], OVERWRITE), one_line)[0]) == (0, 1, 0, 1, 0)
    assert figures(play(Trace.of([5], OVERWRITE), one_line, fetch_on_write=True)[0]) == (0, 1, 1, 1, 0)
    dead = Trace.of([5, 5, 6, 5, 5], [OVERWRITE, DISCARD, OVERWRITE, WRITE, DISCARD])
    assert figures(play(dead, one_line)[0]) == (0, 3, 1, 3, 2)
    for trace in (dead, Trace.of([5, 6, 5], [WRITE, READ, READ]), Trace.of([5, 5, 5], [WRITE, READ, WRITE])):
        assert figures(belady(trace, 1)) == figures(play(trace, one_line)[0])  # one line leaves no choice


def least_fills(accesses, capacity):
    """The fewest fills over all choices of victims, if every accessed line must enter the cache."""
    states = {frozenset(): 0}
    for line, kind in accesses:
        if kind == DISCARD:  # not an access
            continue
        after = {}
        for held, fills in states.items():
            cost = fills + (line not in held and kind != OVERWRITE)
            if line in held or len(held) < capacity:
                choices = [held | {line}]
            else:
                choices = [held - {victim} | {line} for victim in held]
            for state in choices:
                after[state] = min(cost, after.get(state, cost))
        states = after
    return min(states.values())


@examples(200)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([READ, READ, WRITE, OVERWRITE, DISCARD])), min_size=1, max_size=14
    ),
    st.integers(1, 4),
)
def test_belady_is_optimal(accesses, capacity):
    trace = Trace.of(*(list(x) for x in zip(*accesses, strict=True)))
    assert belady(trace, capacity).fills == least_fills(accesses, capacity)
    reads = [(line, READ) for line, _ in accesses]
    assert belady(Trace.of(trace.lines), capacity).misses == least_fills(reads, capacity)


@pytest.mark.parametrize("kind", [READ, WRITE])
def test_belady_keeps_a_discarded_line_that_is_read_or_partly_written_again(kind):
    accesses = [(0, READ), (2, READ), (1, READ), (2, DISCARD), (2, kind)]
    trace = Trace.of(*(list(x) for x in zip(*accesses, strict=True)))
    assert belady(trace, 2).fills == least_fills(accesses, 2) == 3


traces = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([READ, WRITE, OVERWRITE, DISCARD])), max_size=120).map(
    lambda pairs: Trace.of(*(list(x) for x in zip(*pairs, strict=True))) if pairs else Trace.of([])
)


@examples(200)
@given(traces, st.integers(1, 12), st.booleans())
@example(Trace.of([0, 2, 1, 2, 2], [READ, READ, READ, DISCARD, READ]), 2, False)  # a line is read after its discard
def test_fully_associative_properties(trace, capacity, fetch):
    (lru,), best = (
        play(trace, [level(capacity)], fetch_on_write=fetch),
        belady(trace, capacity, fetch_on_write=fetch),
    )
    (larger,) = play(trace, [level(capacity + 1)], fetch_on_write=fetch)
    assert best.fills <= lru.fills
    assert larger.hits >= lru.hits  # a larger LRU holds all that a smaller one does
    assert larger.words <= lru.words
    for result in (lru, best, larger):
        assert result.accesses == np.count_nonzero(trace.kinds != DISCARD)
        assert result.fills <= result.misses
        assert 0 <= result.dead_write_backs <= result.write_backs
        assert result.fills == result.misses or not fetch


@examples(100)
@given(traces, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_each_level_sees_the_misses_and_the_write_backs_before_it(trace, sets, ways, more_sets, more_ways):
    levels = [level(sets * ways, ways), level(more_sets * more_ways, more_ways, "L2"), level(40, name="L3")]
    traffic = play(trace, levels)
    for near, far in itertools.pairwise(traffic):
        assert far.accesses == near.fills + near.write_backs
    assert figures(traffic[0]) == figures(play(trace, levels[:1])[0])  # farther levels do not change a level


# Geometries, refusals ----------------------------------------------------------------------
def test_caches_of_the_catalogue():
    with pytest.raises(RedblueError, match="t4 has no cache, or the lines and ways of its nearest cache"):
        caches_of(memory("t4"))
    levels = (Level("registers", 512), Level("L1d", 2**15, line_bytes=64, ways=8), Level("L3", 2**20, line_bytes=64))
    cpu = Memory("cpu", "a CPU", "cpu", (*levels, Level("DRAM", None)))
    assert caches_of(cpu) == (CacheLevel("L1d", 2**15, 64, 8),)
    simulation = simulate("flash", Problem(32, 32, 16, dtype="float32"), cpu)
    assert [x.name for x in simulation.levels] == ["L1d"]
    hole = (*levels[:2], Level("L2", 2**18, line_bytes=64), Level("L3", 2**20, line_bytes=64, ways=16))
    beyond = Memory("hole", "its L2 is not known", "cpu", (*hole, Level("DRAM", None)))
    assert caches_of(beyond) == (CacheLevel("L1d", 2**15, 64, 8),)  # the accesses that reach L3 are not known
    far = Level("L2", 2**18, line_bytes=64, ways=8)
    for first in (Level("L1d", 2**15, line_bytes=64), Level("L1d", 2**15), Level("near", 2**15, ways=8)):
        with pytest.raises(RedblueError, match="the lines and ways of its nearest cache are not both known"):
            caches_of(Memory("unknown", "its L1d is not known", "cpu", (levels[0], first, far)))
    assert [x.name for x in caches_of(memory("graviton2"))] == ["L1d", "L2"]
    with_ways = [m for m in map(memory, list_memories()) if any(level.ways for level in m.levels)]
    assert with_ways
    for machine in with_ways:
        names = [x.name for x in caches_of(machine)]
        assert names == [x.name for x in machine.levels if x.ways]
        assert [x.name for x in simulate("flash", Problem(32, 32, 16), machine.name).levels] == names


@pytest.mark.parametrize("lines", [[], np.array([]), np.array([], np.int32), [3], np.array([3], np.uint8)], ids=repr)
def test_traces_hold_int64_lines_and_int8_kinds(lines):
    for kinds in (WRITE, [WRITE] * len(lines), np.full(len(lines), WRITE, np.uint64)):
        trace = Trace.of(lines, kinds)
        assert (trace.lines.dtype, trace.kinds.dtype) == (np.int64, np.int8)
        assert (trace.lines.tolist(), trace.kinds.tolist()) == (list(lines), [WRITE] * len(lines))
        assert belady(trace, 1).accesses == len(lines)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: CacheLevel("L1", 100, 64), "no multiple of its lines"),
        (lambda: CacheLevel("L1", 640, 64, 4), "no multiple of its 4 ways"),
        (lambda: CacheLevel("L1", 0), "capacity_bytes of L1 must be a whole number of at least 1, got 0"),
        (lambda: CacheLevel("L1", 2**40), "L1 holds 17,179,869,184 lines, but at most 268,435,456 are simulated"),
        (lambda: play(Trace.of([1]), [1024]), r"every cache level must be a CacheLevel\(.*got 1024"),
        (lambda: play(Trace.of([1]), []), "give at least one cache level"),
        (lambda: play(Trace.of([1]), [level(4), CacheLevel("L2", 1024, 128)]), "L1: 64, L2: 128"),
        (lambda: Trace.of([-1]), "line numbers from 0"),
        (lambda: Trace.of([1], 4), "READ"),
        (lambda: Trace.of([0.5, 1.9]), r"lines must be whole numbers of at most 64 bits, got shape \(2,\) of float64"),
        (lambda: Trace.of([1], 0.5), "kinds must be whole numbers"),
        (lambda: Trace.of([1, 2], [READ, 1.5]), "kinds must be whole numbers"),
        (lambda: Trace.of([2**70]), "lines must be whole numbers"),
        (lambda: Trace.of([1, [2]]), "lines must be whole numbers"),
        (lambda: Trace.of([[1]]), r"got shape \(1, 1\)"),
        (lambda: Trace.of([1, 2, 3], [READ, WRITE]), r"one per line, got shape \(2,\) for 3 lines"),
        (lambda: belady(Trace.of([1]), 0), "lines must be a whole number of at least 1, got 0"),
        (lambda: belady(Trace.of([1]), 1.5), "lines must be a whole number of at least 1, got 1.5"),
    ],
)
def test_refusals(refused, message):
    with pytest.raises(RedblueError, match=message):
        refused()
