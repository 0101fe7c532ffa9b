"""The cached machine: the lines that it touches, and its refusals."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Problem, RedblueError
from redblue.lab import counts
from redblue.lab.simulation import simulate
from redblue.machine import Cached, MachineError, NotStored, TooLong, play
from redblue.machine.addresses import SCRATCH_LINES, ScratchArea
from redblue.machine.hierarchy import DISCARD, OVERWRITE, READ
from support.examples import examples
from support.lines import LINE, figures, level, machine_of, run
from support.spaces import PASSES, covered, tile_edges


# The machine -----------------------------------------------------------------------------------
def test_a_small_program_by_hand():
    machine = machine_of(3, records=True)
    x, y = machine.input("x", (4, LINE)), machine.output("y", (4, LINE))
    a = machine.load(x[range(2)])  # touches nothing
    b = machine.new("b", a + 1.0)  # reads lines 0 and 1 of x, writes 0 and 1 of the scratch area
    machine.free(a)
    machine.store(y[range(2)], b)
    machine.store(y[range(2, 4)], b)
    machine.free(b)
    machine.finish()
    trace, first_x, first_y = machine.trace, SCRATCH_LINES, SCRATCH_LINES + 4
    expected = [first_x, first_x + 1, 0, 1, 0, 1, first_y, first_y + 1, 0, 1, first_y + 2, first_y + 3, 0, 1]
    assert trace.lines.tolist() == expected
    assert (
        trace.kinds.tolist()
        == [READ] * 2 + [OVERWRITE] * 2 + [READ] * 2 + [OVERWRITE] * 2 + [READ] * 2 + [OVERWRITE] * 2 + [DISCARD] * 2
    )
    # Three lines (*: dirty): x 0, x 1, b 0*. b 1* evicts x 0. y 0* evicts x 1; further accesses also evict the oldest
    # line: y 1* evicts b 0*; b 0 is filled and evicts b 1*; b 1 is filled and evicts y 0*; y 2* evicts y 1*; y 3*
    # evicts b 0. At the end b 1 is clean, and y 2* and y 3* are written back. In all, 2 fills of x and 2 of b, and 4 +
    # 2 write-backs.
    assert figures(machine.traffic[0]) == (2, 10, 4, 6, 0)


def touched(use, **options):
    """Lines that `use` touches, given x (8 x 24 words, 32 from row to row) and a machine."""
    machine = machine_of(64, records=True, leading={"x": 2 * LINE}, **options)
    x = machine.input("x", (8, 24))
    use(machine, x)
    return [
        (line - SCRATCH_LINES if line >= SCRATCH_LINES else f"s{line}", "rwod"[kind])
        for line, kind in zip(machine.trace.lines.tolist(), machine.trace.kinds.tolist(), strict=True)
    ]


def test_views_touch_the_lines_of_their_words():
    def columns(m, x):
        t = m.load(x[range(1, 3)])
        m.full("n", (1,), 0.0)
        _ = t[:, 16:20] + 1.0, t[1:].T + 1.0, t.T[:4, None] + 1.0

    assert touched(columns) == [("s0", "o"), (3, "r"), (5, "r"), (4, "r"), (5, "r"), (2, "r"), (4, "r")]
    assert touched(lambda m, x: m.load(x.T[range(16, 24), range(2)]) + 1.0) == [(1, "r"), (3, "r")]


def test_a_loaded_tile_moves_when_it_is_written_to():
    def whole(m, x):
        t = m.load(x[range(1), range(16)])
        t *= 2.0
        _ = t + 1.0

    def part(m, x):
        t = m.load(x[range(2), range(16)])
        t[1:] = 0.0
        m.free(t)

    assert touched(whole) == [(0, "r"), ("s0", "o"), ("s0", "r")]
    moved = [(0, "r"), (2, "r"), ("s0", "o"), ("s1", "o")]
    assert touched(part) == [*moved, ("s1", "o"), ("s0", "d"), ("s1", "d")]
    assert touched(lambda m, x: m.load(x[range(2), range(16)]), packed=True) == moved


@examples(200)
@given(st.lists(st.integers(0, 9), max_size=40), st.randoms(use_true_random=False))
def test_the_scratch_area_hands_out_every_line_once(lengths, random):
    scratch, taken = ScratchArea(100), []
    for lines in lengths:
        if taken and random.random() < 0.4:
            scratch.release(taken.pop(random.randrange(len(taken))))
        if lines <= max(map(len, scratch.holes), default=0):
            taken.append(scratch.allocate(lines))
    used = [line for part in taken for line in part]
    free = [line for hole in scratch.holes for line in hole]
    assert sorted(used + free) == list(range(100))
    assert all(a.stop < b.start for a, b in itertools.pairwise(scratch.holes))


@pytest.mark.thorough
@examples(200)
@given(data=st.data())
def test_any_schedule_runs_and_its_own_count_stays(data):
    schedule, direction = data.draw(st.sampled_from([parameter.values for parameter in PASSES]))
    name, problem = schedule.name, data.draw(covered(schedule, direction))
    tiles = data.draw(tile_edges(schedule, problem))
    machine = machine_of(data.draw(st.integers(1, 40)), packed=data.draw(st.booleans()), records=True)
    run(name, problem, tiles, machine)
    counted = counts.run(name, problem, tiles=tiles)
    moved = problem.streams * machine.reads, problem.streams * machine.writes
    assert (*moved, machine.peak) == (counted.reads, counted.writes, counted.peak)
    # every line of an output is written back at least once
    (traffic,) = machine.traffic
    assert traffic.write_backs > 0
    assert figures(traffic) == figures(play(machine.trace, machine.levels)[0])


# Simulations, refusals -----------------------------------------------------------------
def test_simulations_multiply_streams_and_default_to_the_whole_nearest_level():
    l1, l2 = level(64, 8), level(256, 8, "L2")
    single, four = (simulate("flash", Problem(64, 64, 16, heads=h, dtype="float32"), [l1, l2]) for h in (1, 4))
    assert [4 * x.words for x in single.levels] == [x.words for x in four.levels]
    assert four.count == counts.count("flash", four.count.problem, words=64 * LINE)
    assert single.ratios == tuple(x.words / single.count.words for x in single.levels)
    assert single.levels[0].words >= single.levels[1].words


def test_a_run_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("redblue.lab.simulation.MAX_ACCESSES", 1000)
    with pytest.raises(TooLong, match="more than 1,000 accesses"):
        simulate("flash", Problem(64, 64, 16), [level(64)])


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: Cached([level(4)], 24), "does not hold whole words of 24 bytes"),
        (lambda: simulate("flash", Problem(8, 8, 8), []), "give at least one cache level"),
        (lambda: simulate("flash", Problem(8, 8, 8), 42), "caches must be .* or a sequence, got 42"),
        (lambda: simulate("flash", Problem(8, 8, 8), level(64)), "caches must be .* or a sequence, got CacheLevel"),
        (lambda: simulate("flash", Problem(8, 8, 8), [level(64), 7]), r"must be a CacheLevel\(.*got 7"),
        (
            lambda: simulate("flash", Problem(8, 8, 8), [level(64)], leading=["q"]),
            r"leading must be a mapping or None, got \['q'\]",
        ),
        (
            lambda: simulate("flash", Problem(4, 2**26, 64), [level(64)], tiles={"rows": 4}),
            "v, .67108864, 64. with 64 words from row to row, ends beyond the 268,435,456 lines",
        ),
    ],
)
def test_refusals(refused, message):
    with pytest.raises(RedblueError, match=message):
        refused()


@pytest.mark.parametrize(
    ("leading", "message"),
    [
        ({"x": 9}, "leading names 'x'"),
        ({"q": 7}, "leading of q must be a whole number of at least 8, got 7"),
        ({"q": 100.5}, "leading of q must be a whole number of at least 8, got 100.5"),
        ({"q": "9"}, "at least 8, got '9'"),
        ({"q": 2**40}, "q, .8, 8. with 1,099,511,627,776 words from row to row, ends beyond the 268,435,456 lines"),
    ],
)
def test_bad_distances_between_rows_are_refused(leading, message):
    with pytest.raises(RedblueError, match=message):
        simulate("flash", Problem(8, 8, 8), [level(64)], leading=leading)


def test_outputs_must_be_stored_here_too():
    machine = machine_of(4)
    machine.output("y", (4,))
    with pytest.raises(NotStored):
        machine.finish()
    with pytest.raises(MachineError, match="one or two axes"):
        machine_of(4).input("x", (1, 1, 1))
