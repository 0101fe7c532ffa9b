"""The index of a stored mask: closed form, counting run and numeric run agree.

Numeric runs load the mask from memory.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redblue import Mask, Problem, RedblueError, TooFewWords, UnknownName, count, schedules
from redblue.lab import counts
from redblue.machine import Counting
from redblue.masks.storage.bits import Bits, NofM
from redblue.masks.storage.blocks import BitTiles, BlockList
from redblue.masks.storage.names import parse
from redblue.masks.storage.sparse import Csr
from redblue.schedules.schedule import Sweep
from redblue.schedules.stored_index import index_words, sides
from support.examples import examples
from support.mask_oracle import compositions
from support.spaces import PASSES, block_masks, tile_edges

MASKED = [p for p in PASSES if not p.values[0].full_only]
BLOCKS = Mask.blocks([[True, False], [True, True]], 4)
NAMES = ("bits", "csr", "coo", "tiles:4", "tiles:64")


def figures(c):
    return c.reads, c.writes, c.flops, c.index_words


@pytest.mark.parametrize(("schedule", "direction"), MASKED)
@examples(8)
@given(data=st.data())
def test_closed_form_equals_both_machines_with_every_format(schedule, direction, data):
    n_q, n_k, heads = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 13)), data.draw(st.integers(1, 2))
    mask, _ = data.draw(compositions(n_q, n_k, most=2))
    assume(not mask.on(n_q, n_k).is_full)
    group = 1 if direction == "gradient_x" else data.draw(st.integers(1, 3))
    dtype = data.draw(st.sampled_from(["float8", "float16", "float64"]))
    sizes = {"d": data.draw(st.integers(1, 4)), "d_v": 3, "batch": 2, "heads": heads * group, "kv_heads": heads}
    problem = Problem(n_q, n_k, **sizes, mask=mask, direction=direction, dtype=dtype)
    tiles, name = data.draw(tile_edges(schedule, problem)), data.draw(st.sampled_from(NAMES))
    closed = count(schedule.name, problem, tiles=tiles, index=name)
    ran = counts.run(schedule.name, problem, tiles=tiles, index=name)
    assert figures(closed) == figures(ran)
    assert ran.peak <= closed.peak
    plain = count(schedule.name, problem, tiles=tiles)
    assert (closed.reads, closed.writes) == (plain.reads + closed.index_words, plain.writes)
    assert closed.index == name
    checked = counts.check(schedule.name, problem, tiles=tiles, index=name)
    assert checked.error < 1e-10
    assert tuple(problem.streams * x for x in figures(checked.count)) == figures(ran)


@examples(20)
@given(st.data(), st.sampled_from(["forward", "backward"]), st.integers(30, 300))
def test_planned_tiles_leave_room_for_the_index(data, direction, words):
    mask, _ = data.draw(compositions(9, 11, most=2))
    assume(not mask.on(9, 11).is_full)
    problem = Problem(9, 11, 3, heads=2, kv_heads=1, mask=mask, direction=direction)
    schedule, name = data.draw(st.sampled_from(["flash", "gather", "small_cache"])), data.draw(st.sampled_from(NAMES))
    try:
        closed = count(schedule, problem, words=words, index=name)
    except TooFewWords:
        return
    assert closed.peak <= words
    assert figures(counts.run(schedule, problem, words=words, index=name)) == figures(closed)


@examples(60)
@given(st.data(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_block_lists_are_read_and_decoded(data, n_q, n_k, edge):
    mask = data.draw(block_masks(n_q, n_k))
    side = mask.on(n_q, n_k)
    assume(side.steps != (1, 1) and not side.is_full)
    for direction in ("forward", "backward"):
        problem = Problem(n_q, n_k, 2, mask=mask, direction=direction)
        tiles = dict.fromkeys(schedules.get("flash").direction(problem).edges, edge)
        closed = count("flash", problem, tiles=tiles, index="blocks")
        assert figures(closed) == figures(counts.run("flash", problem, tiles=tiles, index="blocks"))
        assert counts.check("flash", problem, tiles=tiles, index="blocks").error < 1e-10


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 2), (3, 5)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_n_of_m_is_read_and_decoded(n, m, direction):
    problem = Problem(2 * m, 3 * m, 3, mask=Mask.n_of_m(n, m), dtype="float8", direction=direction)
    closed = count("flash", problem, tiles={"rows": 3}, index=f"{n}:{m}")
    assert figures(closed) == figures(counts.run("flash", problem, tiles={"rows": 3}, index=f"{n}:{m}"))
    assert counts.check("flash", problem, tiles={"rows": 3}, index=f"{n}:{m}").error < 1e-10


def test_attended_pairs_follow_the_loaded_index():
    """A single wrong bit in slow memory changes the result, so the run has no other source of the mask."""

    @dataclasses.dataclass(frozen=True)
    class OneBitWrong(Bits):
        def arrays(self, side, bits):
            stored = super().arrays(side, bits)
            stored["bits"][3, 0] ^= 1 << 2
            return stored

    problem = Problem(8, 8, 3, mask=Mask.causal())
    for schedule in ("flash", "gather", "standard", "hybrid"):
        assert counts.check(schedule, problem, words=99, index=Bits()).error < 1e-10
        if schedule != "hybrid":  # `hybrid` would detect slices of P that were never stored
            assert counts.check(schedule, problem, words=99, index=OneBitWrong()).error > 1e-3


def test_words_by_hand():
    """A window of 3 on 8 x 8, 22 pairs; words of 16 bits."""
    problem = Problem(8, 8, 2, mask=Mask.sliding_window(1, 1))
    side = sides(problem, [Sweep("rows", 1)])["rows"]
    assert side.nnz == 22
    sizes = {name: parse(name).size(side, 16) for name in ("bits", "csr", "coo", "tiles:4")}
    # 2 x 2 tiles of 4 x 4 rows, of one word each, none full: 2 (2 + 1) pointers
    assert sizes == {"bits": 8, "csr": 9 + 22, "coo": 44, "tiles:4": 6 + 4 + 4 * 4}
    read = {name: index_words(problem, parse(name), [Sweep("rows", 4)]) for name in sizes}
    assert read == {"bits": 8, "csr": 2 * 5 + 22, "coo": 44, "tiles:4": 2 * 4 + 4 + 16}
    by_row = {name: index_words(problem, parse(name), [Sweep("rows", 1, 3)]) for name in sizes}
    assert by_row == {"bits": 3 * 8, "csr": 3 * (16 + 22), "coo": 3 * 44, "tiles:4": 3 * (8 * 4 + 8 * 2 + 16)}
    blocks = Problem(8, 8, 2, mask=Mask.blocks([[True, False], [True, True]], 4))
    assert index_words(blocks, BlockList(), [Sweep("rows", 4)]) == 2 * 2 + 3
    assert index_words(blocks, BlockList(), [Sweep("cols", 8)]) == 3 + 3
    pairs = Problem(8, 8, 2, mask=Mask.n_of_m(2, 4), dtype="float8")
    assert index_words(pairs, NofM(2, 4), [Sweep("rows", 4)]) == 8 * 1  # 2 groups x 2 places x 2 bits


def test_heads_of_a_group_read_the_index_together():
    mask = Mask.sliding_window(2, 0)
    counted = count("flash", Problem(12, 12, 2, mask=mask), tiles={"rows": 4}, index="csr")
    grouped = Problem(12, 12, 2, heads=3, kv_heads=1, batch=2, mask=mask)
    assert count("flash", grouped, tiles={"rows": 12}, index="csr").index_words == 2 * counted.index_words


def test_every_sweep_is_declared():
    """If a pass read more blocks than it declares, it would move more words than its closed form."""
    problem = Problem(9, 9, 3, mask=Mask.causal(), direction="backward")
    for schedule in schedules.SCHEDULES.values():
        if "backward" in schedule.passes and schedule.name != "standard":  # its input P includes the zeros
            tiles = schedule.tiles(problem, 200)
            assert schedule.passes["backward"].sweeps(problem, tiles), schedule.name
            machine, _ = counts.execute(schedule, problem, tiles, Counting(), index=Csr())
            plain, _ = counts.execute(schedule, problem, tiles, Counting())
            sweeps = schedule.passes["backward"].sweeps(problem, tiles)
            assert machine.reads - plain.reads == index_words(problem, Csr(), sweeps)


def test_a_million_tokens_have_closed_forms():
    problem = Problem(10**6, 10**6, 64, mask=Mask.sliding_window(256, 255))
    nnz = problem.mask.nnz(10**6, 10**6)
    assert count("gather", problem, words=10**4, index="csr").index_words == 2 * 10**6 + nnz
    counted = count("flash", problem, words=10**5, index="tiles")
    assert counted.index_words < 10**7 < nnz


@pytest.mark.parametrize(
    ("mask", "index", "says"),
    [
        (Mask.causal(), "blocks", "masks that are made of blocks"),
        (BLOCKS & Mask.causal(), "blocks", "masks that are made of blocks"),
        (BLOCKS | Mask.blocks(np.tri(3, dtype=bool), 3), "blocks", "masks that are made of blocks"),
        (Mask.causal(), "2:4", "each row attends exactly 2 of every 4 columns"),
        (Mask.causal(), "5:4", "give n of at most m"),
        (Mask.causal(), "tiles:0", "whole numbers of at least 1"),
        (Mask.full(), "csr", "has no index"),
        (Mask.sliding_window(99, 99), "bits", "has no index"),
    ],
)
def test_masks_that_a_format_cannot_store_are_refused(mask, index, says):
    with pytest.raises(RedblueError, match=says):
        count("flash", Problem(8, 8, 2, mask=mask), words=100, index=index)


def test_too_many_pairs_and_tiles_are_refused():
    problem = Problem(10**5, 10**5, 2, mask=Mask.causal())
    with pytest.raises(RedblueError, match="pairs, at most"):
        parse("csr").arrays(sides(problem, [Sweep("rows", 1)])["rows"], 16)
    with pytest.raises(RedblueError, match="live tiles of 2 x 2, at most"):
        count("flash", problem, words=10**4, index="tiles:2")
    with pytest.raises(TooFewWords, match="beside the index"):
        count("flash", Problem(8, 8, 2, mask=Mask.causal()), words=10, index="bits")


def test_an_index_larger_than_the_cache_leaves_no_words(monkeypatch):
    monkeypatch.setattr(counts, "_cost", lambda *arguments: SimpleNamespace(peak=1000))
    with pytest.raises(TooFewWords, match="beside the index of the mask, 0 of 10 words are left"):
        count("flash", Problem(8, 8, 2, mask=Mask.causal()), words=10, index="bits")


def test_unknown_formats_name_the_nearest():
    with pytest.raises(UnknownName, match="unknown format 'crs'; nearest: csr"):
        parse("crs")
    assert parse("tiles") == BitTiles(64)
    assert parse("tiles:32").name == "tiles:32"
    assert parse("2:4") == NofM(2, 4)
