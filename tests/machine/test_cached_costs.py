"""The costs of schedules on caches, compared with the counts of the model."""

import math

import pytest

from redblue import Mask, Problem, schedules
from redblue.lab import counts
from redblue.lab.simulation import simulate
from redblue.machine import CacheLevel, belady
from redblue.schedules.schedule import PRODUCED
from support.lines import LINE, level, lines_of, machine_of, run
from support.spaces import PASSES


def on_lru(name, problem, tiles, words):
    """(reads, live writes) of a fully associative LRU of `words` words, and the same of the model."""
    machine = run(name, problem, tiles, machine_of(lines_of(words)))
    (traffic,) = machine.traffic
    return (traffic.reads, traffic.writes - traffic.dead_writes), (machine.reads, machine.writes)


def flash_forward_words(r, c, d, d_v):
    """All words that one round touches: the resident words, and the slices of K and V, used up or not.

    At the end of a block, also O, the row statistics, and the memory of O and lse.
    """
    return r * (d + d_v + 2) + r * c + r + c * (d + d_v), r * (2 * d_v + 3)


@pytest.mark.parametrize(("r", "c", "d", "d_v"), [(16, 2, 64, 64), (48, 16, 64, 32), (32, 2, 32, 64), (96, 16, 32, 32)])
def test_flash_costs_its_counted_words_with_one_more_slice_and_far_more_with_a_line_less(r, c, d, d_v):
    problem, tiles = Problem(192, 256, d, d_v), {"rows": r, "cols": c}
    a_round, an_end = flash_forward_words(r, c, d, d_v)
    moved, counted = on_lru("flash", problem, tiles, max(a_round, an_end))
    assert moved == counted
    moved, counted = on_lru("flash", problem, tiles, a_round - LINE)
    assert sum(moved) > 1.2 * sum(counted)


@pytest.mark.parametrize(("r", "c"), [(16, 2), (48, 16)])
def test_besides_its_counted_words_flash_moves_only_dead_tiles(r, c):
    problem, words = Problem(192, 256, 64, dtype="float32"), max(flash_forward_words(r, c, 64, 64))
    simulation = simulate("flash", problem, [level(lines_of(words))], tiles={"rows": r, "cols": c})
    (l1,) = simulation.levels
    assert l1.words == simulation.count.words + l1.dead_write_backs * LINE
    assert 0 < l1.dead_writes < 0.05 * simulation.count.words


@pytest.mark.parametrize(("schedule", "direction"), PASSES)
def test_with_twice_the_peak_every_pass_costs_no_more_than_its_counted_words(schedule, direction):
    """Write-backs of dead tiles do not count.

    Costs are lower if lines that the model reloads are still in the cache.
    """
    problem = Problem(96, 96, 48, 32, direction=direction)
    tiles = dict.fromkeys(schedule.direction(problem).edges, 2 * LINE)
    words = 2 * counts.count(schedule.name, problem, tiles=tiles).peak
    moved, counted = on_lru(schedule.name, problem, tiles, words)
    assert sum(moved) <= 1.01 * sum(counted)
    inputs = set(schedule.passes[direction].arrays) - set(PRODUCED[direction])
    assert moved[0] >= sum(LINE * lines_of(math.prod(counts.shape_of(name, problem))) for name in inputs)


def flash_backward_words(t, d, d_v):
    """dQ: a round and the used-up O. dK and dV: a round and the next slices of Q and dO."""
    r, c, R, C = t["rows"], t["cols"], t["dkv_rows"], t["dkv_cols"]
    dq = r * (2 * d + d_v + 2) + r * c + c * (d + d_v) + r * (d_v + 2)
    return max(dq, C * (2 * d + 2 * d_v) + R * C + 2 * R * (d + d_v + 2))


@pytest.mark.parametrize("t", [(32, 1, 16, 16), (80, 1, 16, 48), (32, 16, 32, 32)])
@pytest.mark.parametrize(("d", "d_v"), [(32, 32), (64, 32)])
def test_flash_backward_costs_its_counted_words(t, d, d_v):
    tiles = dict(zip(("rows", "cols", "dkv_rows", "dkv_cols"), t, strict=True))
    problem = Problem(256, 256, d, d_v, direction="backward")
    moved, counted = on_lru("flash", problem, tiles, flash_backward_words(tiles, d, d_v))
    assert moved == counted


@pytest.mark.parametrize(("r", "c", "d"), [(32, 16, 64), (48, 16, 96), (64, 32, 64)])
def test_hybrid_backward_costs_its_counted_words(r, c, d):
    w = LINE  # depth: keys or queries that are streamed together
    tiles = {"rows": r, "cols": c, "depth": w, "dq_rows": r, "dk_rows": r, "dq_cols": 32, "dk_cols": 32}
    # Writing P touches a round and the memory of P. Writing dS touches dO twice, V, dV, and four tiles: P in place, its
    # copy that becomes dS, the memory of dS, and the next tile.
    words = max(r * (d + 1) + w * d + 2 * r * w, 2 * c * d + 2 * w * d + 4 * w * c + w)
    moved, counted = on_lru("hybrid", Problem(192, 192, d, direction="backward"), tiles, words)
    assert moved == counted


# P's row maxima lie in columns, one word per line. Row statistics are not accessed while a score tile is summed.
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
    tiles = {edge: tiles[edge] for edge in schedule.direction(problem).edges if edge in tiles}
    tile = 2 * 32 * 32 + 3 * 16 * 32  # an output tile, slices of P and of its scaled copy, and the column of maxima
    if name == "hybrid":
        words = r * d + 3 * r * c + 2 * c * d + 3 * r * LINE
    else:
        words = max(r * c + 2 * 16 * (r + c), tile) + 2 * r * LINE
    moved, counted = on_lru(name, problem, tiles, words)
    assert abs(sum(moved) / sum(counted) - 1) < excess


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
    best = belady(machine.trace, lines_of(machine.peak) + 1)
    assert best.fills * LINE <= machine.reads


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
