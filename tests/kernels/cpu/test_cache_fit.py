"""Tiles of CPU kernels for a cache of `words` words, and the errors if no tiles fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue import Problem, RedblueError, TooFewWords, count
from redblue.kernels.cpu import cache_fit
from redblue.kernels.cpu.plan import SpillTile, Tile
from redblue.kernels.table import tiled_kernels
from support.examples import examples

AVX2 = cache_fit.Row(lanes=16, vector=8, packed_bytes=4)  # of float32
KERNELS = [(name, way) for way in ("forward", "backward") for name in tiled_kernels("cpu", way)]
LENGTHS = st.integers(1, 300)


def problem(direction, d=64, n=512):
    return Problem(n, n, d, dtype="float32", direction=direction)


@pytest.mark.parametrize(("schedule", "direction"), KERNELS)
@examples(25)
@given(n_q=LENGTHS, n_k=LENGTHS, d=LENGTHS, d_v=LENGTHS, words=st.integers(1, 1 << 17))
def test_tiles_fit_by_the_count_and_errors_name_the_fewest_words(schedule, direction, n_q, n_k, d, d_v, words):
    problem = Problem(n_q, n_k, d, d_v, dtype="float32", direction=direction)
    try:
        tile = cache_fit.tiles_for(schedule, problem, words, AVX2)
    except TooFewWords as refusal:
        least = int(str(refusal).split("at least ")[1].split()[0])
        assert least > words
        tile = cache_fit.tiles_for(schedule, problem, least, AVX2)
        words = least
    assert count(schedule, problem, tiles=tile.edges(direction)).peak <= words


@pytest.mark.parametrize(("schedule", "direction"), KERNELS)
def test_more_words_never_move_more(schedule, direction):
    moved = []
    for words in (1 << 10, 1 << 12, 1 << 14, 1 << 16):
        try:
            tile = cache_fit.tiles_for(schedule, problem(direction), words, AVX2)
        except TooFewWords:
            assert not moved
            continue
        moved.append(count(schedule, problem(direction), tiles=tile.edges(direction)).words)
    assert len(moved) > 1
    assert moved == sorted(moved, reverse=True)


def test_each_schedule_has_its_own_regime():
    """At d = 512, 64k words are less than d^2 / 4 for outputs that stay, and 4096 words hold no row of flash."""
    words = {
        name: count(
            name,
            problem("forward", 512),
            tiles=cache_fit.tiles_for(name, problem("forward", 512), 1 << 16, AVX2).edges("forward"),
        ).words
        for name in tiled_kernels("cpu", "forward")
    }
    assert words["small_cache"] < words["hybrid"] < words["flash"]
    assert isinstance(cache_fit.tiles_for("small_cache", problem("forward", 512), 1024, AVX2), SpillTile)
    assert isinstance(cache_fit.tiles_for("flash", problem("forward", 32), 2048, AVX2), Tile)
    with pytest.raises(TooFewWords, match="kernel of flash forward with d = 512, d_v = 512 needs a cache of at least"):
        cache_fit.tiles_for("flash", problem("forward", 512), 4096, AVX2)


def test_a_schedule_without_a_kernel_is_refused():
    with pytest.raises(
        RedblueError, match="no compiled kernel runs saha_ye forward; schedules with a kernel: flash, hybrid, small"
    ):
        cache_fit.tiles_for("saha_ye", problem("forward"), 4096, AVX2)


@pytest.mark.parametrize("name", ["hybrid", "small_cache"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_edges_are_those_of_the_schedule(name, direction):
    single = problem(direction)
    tile = cache_fit.tiles_for(name, single, 1 << 14, AVX2)
    assert SpillTile.of(name, cache_fit.schedules.get(name).make_tiles(single, tile.edges(direction))._asdict()) == tile
    planned = cache_fit.plan_spilled(name, direction, 4096, 1 << 20, 64, 64, 8, AVX2)
    assert planned.chunk * (1 << 20) * AVX2.packed_bytes <= cache_fit.P_BYTES
