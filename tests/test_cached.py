"""The cached machine: what it touches, and what schedules cost on it against what the model counts."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, counts, schedules
from redblue.machine import Cached, CacheLevel, MachineError, NotStored, belady, play
from redblue.machine.cached import SCRATCH_LINES, Scratch
from redblue.machine.caches import DISCARD, OVERWRITE, READ
from redblue.simulation import simulate
from spaces import problems, tile_edges

LINE_BYTES, WORD_BYTES = 64, 4
LINE = LINE_BYTES // WORD_BYTES


def level(lines, ways=None, name="L1"):
    return CacheLevel(name, lines * LINE_BYTES, LINE_BYTES, ways)


def figures(found):
    return found.hits, found.misses, found.fills, found.write_backs, found.dead_write_backs


# The machine -----------------------------------------------------------------------------------
def run(schedule, problem, tiles, machine):
    counts.execute(schedules.get(schedule), problem, schedules.get(schedule).make_tiles(problem, tiles), machine)
    return machine


def machine_of(lines, **options):
    return Cached([level(lines)], WORD_BYTES, **options)


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
    # Three lines: x 0, x 1, b 0*. b 1* evicts x 0. y 0* evicts x 1; from then on, too, what is oldest leaves:
    # y 1* evicts b 0*; b 0 is filled and evicts b 1*; b 1 is filled and evicts y 0*; y 2* evicts y 1*; y 3* evicts b 0.
    # At the end b 1 is clean, y 2* and y 3* are written back: in all x's 2 and b's 2 fills, 4 + 2 write-backs.
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.randoms(use_true_random=False))
def test_the_scratch_area_hands_out_every_line_once(lengths, random):
    scratch, taken = Scratch(100), []
    for lines in lengths:
        if taken and random.random() < 0.4:
            scratch.give_back(taken.pop(random.randrange(len(taken))))
        if lines <= max(map(len, scratch.holes), default=0):
            taken.append(scratch.take(lines))
    used = [line for part in taken for line in part]
    free = [line for hole in scratch.holes for line in hole]
    assert sorted(used + free) == list(range(100))
    assert all(a.stop < b.start for a, b in itertools.pairwise(scratch.holes))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_schedule_runs_and_its_own_count_stays(data):
    name = data.draw(st.sampled_from(["standard", "flash", "hybrid", "small_cache"]))
    problem = data.draw(problems())
    tiles = data.draw(tile_edges(schedules.get(name), problem))
    machine = machine_of(data.draw(st.integers(1, 40)), packed=data.draw(st.booleans()), records=True)
    run(name, problem, tiles, machine)
    counted = counts.run(name, problem, tiles=tiles)
    moved = problem.streams * machine.reads, problem.streams * machine.writes
    assert (*moved, machine.peak) == (counted.reads, counted.writes, counted.peak)
    # every line of an output is written back at least once
    (found,) = machine.traffic
    assert found.write_backs > 0
    assert figures(found) == figures(play(machine.trace, machine.levels)[0])


# What a schedule costs ---------------------------------------------------------------------------
def lines_of(words):
    return -(-words // LINE)


def on_lru(name, problem, tiles, words):
    """(reads, live writes) of a fully associative LRU of `words` words, and the same of the model."""
    machine = run(name, problem, tiles, machine_of(lines_of(words)))
    (found,) = machine.traffic
    return (found.reads, found.writes - found.dead_writes), (machine.reads, machine.writes)


def flash_forward_words(r, c, d, d_v):
    """All that one round touches: what stays, and the slices of K and V, finished with or not.

    And, at the end of a block, O, the row statistics, and where O and lse go.
    """
    return r * (d + d_v + 2) + r * c + r + c * (d + d_v), r * (2 * d_v + 3)


@pytest.mark.parametrize(("r", "c", "d", "d_v"), [(16, 2, 64, 64), (48, 16, 64, 32), (32, 2, 32, 64), (96, 16, 32, 32)])
def test_flash_costs_its_counted_words_with_one_more_slice_and_far_more_with_a_line_less(r, c, d, d_v):
    problem, tiles = Problem(192, 256, d, d_v), {"rows": r, "cols": c}
    a_round, an_end = flash_forward_words(r, c, d, d_v)
    found, counted = on_lru("flash", problem, tiles, max(a_round, an_end))
    assert found == counted
    found, counted = on_lru("flash", problem, tiles, a_round - LINE)
    assert sum(found) > 1.2 * sum(counted)


def flash_backward_words(t, d, d_v):
    """dQ: a round, and O, which is finished with; dK and dV: a round, and the next slices of Q and dO."""
    r, c, R, C = t["rows"], t["cols"], t["dkv_rows"], t["dkv_cols"]
    dq = r * (2 * d + d_v + 2) + r * c + c * (d + d_v) + r * (d_v + 2)
    return max(dq, C * (2 * d + 2 * d_v) + R * C + 2 * R * (d + d_v + 2))


@pytest.mark.parametrize("t", [(32, 1, 16, 16), (80, 1, 16, 48), (32, 16, 32, 32)])
@pytest.mark.parametrize(("d", "d_v"), [(32, 32), (64, 32)])
def test_flash_backward_costs_its_counted_words(t, d, d_v):
    tiles = dict(zip(("rows", "cols", "dkv_rows", "dkv_cols"), t, strict=True))
    problem = Problem(256, 256, d, d_v, direction="backward")
    found, counted = on_lru("flash", problem, tiles, flash_backward_words(tiles, d, d_v))
    assert found == counted


@pytest.mark.parametrize(("r", "c", "d"), [(32, 16, 64), (48, 16, 96), (64, 32, 64)])
def test_hybrid_backward_costs_its_counted_words(r, c, d):
    w = LINE  # depth: keys or queries that stream by together
    tiles = {"rows": r, "cols": c, "depth": w, "dq_rows": r, "dk_rows": r, "dq_cols": 32, "dk_cols": 32}
    # While P is written: a round, and where P goes. While dS is: dO twice, V, dV, and tiles of P: in place, made dS of,
    # where dS goes, and the next.
    words = max(r * (d + 1) + w * d + 2 * r * w, 2 * c * d + 2 * w * d + 4 * w * c + w)
    found, counted = on_lru("hybrid", Problem(192, 192, d, direction="backward"), tiles, words)
    assert found == counted


# P's row maxima lie in columns, one word per line; row statistics rest while a score tile is summed.
@pytest.mark.parametrize(
    ("name", "direction", "excess"),
    [("hybrid", "forward", 0.05), ("small_cache", "forward", 0.05), ("small_cache", "backward", 0.01)],
)
def test_other_passes_cost_little_more_than_their_counted_words(name, direction, excess):
    r, c, d = (32, 16, 64) if name == "hybrid" else (32, 48, 128)
    tiles = {"rows": r, "cols": c, "depth": 16}
    tiles |= {f"{x}_{edge}": 32 for x in ("out", "dq", "dk", "dv") for edge in ("rows", "cols")}
    problem = Problem(384, 384, d, direction=direction)
    schedule = schedules.get(name)
    tiles = {edge: tiles[edge] for edge in schedule.direction(problem).edges}
    tile = 2 * 32 * 32 + 3 * 16 * 32  # of an output: itself, slices of P and its scaled copy, the column of maxima
    if name == "hybrid":
        words = r * d + 3 * r * c + 2 * c * d + 3 * r * LINE
    else:
        words = max(r * c + 2 * 16 * (r + c), tile) + 2 * r * LINE
    found, counted = on_lru(name, problem, tiles, words)
    assert abs(sum(found) / sum(counted) - 1) < excess


@pytest.mark.parametrize(
    ("name", "direction"),
    [("flash", "forward"), ("flash", "backward"), ("hybrid", "backward"), ("small_cache", "backward")],
)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=["full", "causal"])
def test_belady_needs_the_peak_and_one_line_to_pass_through(name, direction, mask):
    problem = Problem(128, 128, 48, direction=direction, mask=mask)
    schedule = schedules.get(name)
    tiles = schedule.make_tiles(problem, dict.fromkeys(schedule.direction(problem).edges, LINE))
    machine = machine_of(1, records=True)
    counts.execute(schedule, problem, tiles, machine)
    found = belady(machine.trace, lines_of(machine.peak) + 1)
    assert found.fills * LINE <= machine.reads


def test_fetching_what_is_overwritten_costs_the_writes_again():
    problem, tiles = Problem(192, 256, 64), {"rows": 32, "cols": 1}
    lines = lines_of(max(flash_forward_words(32, 1, 64, 64)))
    plain, fetching = (
        run("flash", problem, tiles, machine_of(lines, fetch_on_write=fetch)).traffic[0] for fetch in (False, True)
    )
    assert fetching.write_backs == plain.write_backs
    stored_lines = (192 * 64 + 192) // LINE
    assert fetching.fills - plain.fills >= stored_lines


def test_rows_a_power_of_two_apart_crowd_into_few_sets():
    problem, tiles, l1 = (
        Problem(128, 128, 64, dtype="float32"),
        {"rows": 32, "cols": 1},
        CacheLevel("L1d", 2**15, 64, 8),
    )

    def words(pitch, packed=False):
        leading = dict.fromkeys(("q", "k", "v", "out"), pitch)
        return simulate("flash", problem, [l1], tiles=tiles, leading=leading, packed=packed).levels[0].words

    assert words(4096) > 2 * words(64)
    assert words(4096 + 64) < 1.1 * words(64)
    assert words(64) <= words(4096, packed=True) < words(4096)


# Simulations, refusals -----------------------------------------------------------------
def test_simulations_multiply_streams_and_default_to_the_whole_nearest_level():
    l1, l2 = level(64, 8), level(256, 8, "L2")
    one, four = (simulate("flash", Problem(64, 64, 16, heads=h, dtype="float32"), [l1, l2]) for h in (1, 4))
    assert [4 * x.words for x in one.levels] == [x.words for x in four.levels]
    assert four.count == counts.count("flash", four.count.problem, words=64 * LINE)
    assert one.ratios == tuple(x.words / one.count.words for x in one.levels)
    assert one.levels[0].words >= one.levels[1].words


def test_a_run_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr("redblue.simulation.MOST_ACCESSES", 1000)
    with pytest.raises(MachineError, match="more than 1,000 accesses"):
        simulate("flash", Problem(64, 64, 16), [level(64)])


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: Cached([level(4)], 24), "does not hold whole words of 24 bytes"),
        (lambda: simulate("flash", Problem(8, 8, 8), []), "give at least one cache level"),
        (lambda: simulate("flash", Problem(8, 8, 8), [level(64)], leading={"x": 9}), "leading names 'x'"),
        (lambda: simulate("flash", Problem(8, 8, 8), [level(64)], leading={"q": 7}), "is 7 words, its rows have 8"),
    ],
)
def test_refusals(refused, message):
    with pytest.raises(RedblueError, match=message):
        refused()


def test_outputs_must_be_stored_here_too():
    machine = machine_of(4)
    machine.output("y", (4,))
    with pytest.raises(NotStored):
        machine.finish()
    with pytest.raises(MachineError, match="one or two axes"):
        machine_of(4).input("x", (1, 1, 1))
