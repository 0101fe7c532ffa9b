"""Paged attention as a schedule: nodes, results against float64, and words by run, by closed form and by hand."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import Mask, NotCovered, PagedProblem, Problem, RedblueError, TooFewWords, count, lower_bound
from redblue.lab import counts
from redblue.machine import CacheLevel, CapacityError, Counting, Numeric
from redblue.schedules import paged
from redblue.schedules.paged_nodes import Node, shared_nodes
from support.examples import examples
from support.paged_problems import attended, paged_problems, paged_tiles, words_by_hand

THEORY = (Path(__file__).parents[2] / "docs" / "lab" / "theory.md").read_text(encoding="utf-8")
THEORY = THEORY[THEORY.index("## Paged caches") : THEORY.index("## Limits of the model")]
FULL = st.just(Mask.full())


def figures(c):
    return c.reads, c.writes, c.flops


# Nodes --------------------------------------------------------------------------------------------


def common_keys(problem, a, b):
    """The number of leading keys in full pages that both sequences read from the same pages and attend fully."""
    both = []
    for pages in itertools.count(1):
        keys = pages * problem.page
        for x in (a, b):
            everyone = [attended(problem, x, i) for i in range(problem.queries[x])]
            if keys > problem.keys[x] or not all(set(range(keys)) <= each for each in everyone):
                return len(both) * problem.page
        if problem.table[a][pages - 1] != problem.table[b][pages - 1]:
            return len(both) * problem.page
        both.append(pages)
    raise AssertionError


@examples(100)
@given(problem=paged_problems(), least=st.sampled_from([1, 4, 8, 64]))
def test_nodes_cover_each_key_once_and_share_all_that_is_common(problem, least):
    nodes = shared_nodes(problem, least)
    sequences = [b for b, queries in enumerate(problem.queries) if queries]
    for b in sequences:
        runs = [(node.first, node.stop) for node in nodes if b in node.members]
        assert runs[0][0] == 0
        assert [stop for _, stop in runs] == [first for first, _ in runs[1:]] + [problem.keys[b]]
    assert all(set(node.members) <= set(sequences) for node in nodes)
    for a, b in itertools.combinations(sequences, 2):
        both = [node for node in nodes if a in node.members and b in node.members]
        shared, common = sum(node.stop - node.first for node in both), common_keys(problem, a, b)
        assert shared == common if least == 1 else shared <= common
        assert both or common < least
        assert all(node.stop - node.first >= least for node in both)


def test_prefixes_nest():
    """Four sequences share 4 pages; two of them share 6 more."""
    base, more = list(range(4)), list(range(4, 10))
    table = [[*base, *more, 20], [*base, 30], [*base, *more, 21], [*base, 31]]
    problem = PagedProblem([1] * 4, [11 * 16, 80, 11 * 16 - 3, 75], 16, 8, table=table)
    nodes = shared_nodes(problem)
    assert set(nodes) == {
        Node(0, 64, (0, 1, 2, 3)),
        Node(64, 160, (0, 2)),
        Node(160, 176, (0,)),
        Node(160, 173, (2,)),
        Node(64, 80, (1,)),
        Node(64, 75, (3,)),
    }
    assert {node.members for node in shared_nodes(problem, 65)} == {(0, 2), (0,), (1,), (2,), (3,)}
    assert shared_nodes(problem, prefix_pages=0) == tuple(Node(0, n, (b,)) for b, n in enumerate(problem.keys))
    assert shared_nodes(problem, prefix_pages=2)[0] == Node(0, 32, (0, 1, 2, 3))


def test_queries_and_windows_limit_what_is_shared():
    pages = [[0, 1, 2, 3, 4]] * 2
    chunk = PagedProblem([1, 20], [80, 80], 16, 8, table=pages)
    assert shared_nodes(chunk, 16)[0] == Node(0, 48, (0, 1))  # the first query of the chunk is at key 60
    last = PagedProblem([1, 1], [80, 80], 16, 8, table=pages)
    assert shared_nodes(last) == (Node(0, 80, (0, 1)),)
    for left, shared in ((79, True), (78, False)):
        windows = PagedProblem([1, 1], [80, 80], 16, 8, table=pages, mask=Mask.sliding_window(left, 0, "bottom-right"))
        assert (len(shared_nodes(windows)) == 1) == shared


# Numbers and words --------------------------------------------------------------------------------


@examples(120)
@given(problem=paged_problems(), tiles=paged_tiles())
def test_closed_form_equals_both_machines_and_results_equal_float64(problem, tiles):
    closed, counted = count("paged", problem, tiles=tiles), counts.run("paged", problem, tiles=tiles)
    assert figures(closed) == figures(counted)
    assert counted.peak <= closed.peak
    checked = counts.check("paged", problem, tiles=tiles)
    assert checked.error < 1e-10
    assert tuple(problem.streams * x for x in figures(checked.count)) == figures(counted)
    assert lower_bound(problem, 1).words <= closed.words


@examples(60)
@given(problem=paged_problems(FULL), tiles=paged_tiles())
def test_the_peak_is_at_most_a_word_too_large_where_all_attend_all(problem, tiles):
    assert 0 <= count("paged", problem, tiles=tiles).peak - counts.run("paged", problem, tiles=tiles).peak <= 1


@examples(60)
@given(problem=paged_problems(FULL), tiles=paged_tiles(), by=st.integers(1, 3))
def test_the_peak_is_exact_where_all_attend_all_and_tiles_hold_whole_pages(problem, tiles, by):
    tiles |= {"cols": by * problem.page, "piece": 2 * by * problem.page}
    assert count("paged", problem, tiles=tiles).peak == counts.run("paged", problem, tiles=tiles).peak


@examples(100)
@given(problem=paged_problems(), tiles=paged_tiles())
def test_the_words_are_those_of_the_rules(problem, tiles):
    nodes = shared_nodes(problem, tiles["shared"])
    by_hand = words_by_hand(problem, nodes, tiles["rows"], tiles["piece"], tiles["few"])
    counted = count("paged", problem, tiles=tiles)
    assert (counted.reads, counted.writes) == by_hand


@examples(60)
@given(problem=paged_problems(), tiles=paged_tiles(), pages=st.one_of(st.none(), st.integers(0, 6)))
def test_words_of_a_given_prefix(problem, tiles, pages):
    nodes = shared_nodes(problem, tiles["shared"], pages)
    by_hand = words_by_hand(problem, nodes, tiles["rows"], tiles["piece"], tiles["few"])
    assert paged.words(problem, paged.Tiles(**tiles), pages) == by_hand


@examples(60)
@given(problem=paged_problems(), words=st.integers(1, 300))
def test_planned_tiles_run_within_their_capacity(problem, words):
    try:
        closed = count("paged", problem, words=words)
    except TooFewWords as refusal:
        least = int(str(refusal).split("at least ")[1].split()[0])
        assert words < least == count("paged", problem, words=least).peak
        with pytest.raises(TooFewWords):
            count("paged", problem, words=least - 1)
        return
    assert closed.peak <= words
    assert figures(counts.run("paged", problem, words=words)) == figures(closed)
    assert counts.check("paged", problem, words=words).error < 1e-10


@examples(40)
@given(problem=paged_problems(FULL), words=st.integers(20, 200))
def test_no_other_tiles_move_fewer_words(problem, words):
    try:
        best = count("paged", problem, words=words)
    except TooFewWords:
        return
    longest = max(problem.keys) + 1
    for rows, shared in itertools.product(range(1, max(2, problem.n_q + 1)), (1, 2, 3, 4, 6, 8, 12, 16, longest)):
        other = count("paged", problem, tiles={"rows": rows, "cols": 1, "shared": shared})
        assert other.peak > words or other.words >= best.words


def test_one_word_less_than_the_peak_is_refused():
    problem = PagedProblem.of(Problem(1, 40, 5, 3, batch=3), 4, 36)
    tiles = paged.schedule.make_tiles(problem, {"rows": 2, "cols": 4, "piece": 12, "shared": 4})
    peak = paged.schedule.cost(problem, tiles).peak
    counts.execute(paged.schedule, problem, tiles, Counting(peak))
    with pytest.raises(CapacityError):
        counts.execute(paged.schedule, problem, tiles, Counting(peak - 1))


def test_keys_are_found_through_the_loaded_table_alone():
    """If pages move and the loaded table changes accordingly, results stay the same.

    If only the table changes, they differ.
    """
    problem = PagedProblem.of(Problem(2, 30, 4, 3, batch=3, heads=2, kv_heads=1), 4, 20).one_stream()
    arrays, expected = counts.example(problem)
    tiles = paged.schedule.make_tiles(problem, {"rows": 3, "cols": 5, "shared": 8, "piece": 9})
    order = np.random.default_rng(0).permutation(problem.cells // 4)
    moved = arrays | {"page_table": np.where(arrays["page_table"] < 0, -1, np.argsort(order)[arrays["page_table"]])}

    def error(inputs):
        _, outputs = counts.execute(paged.schedule, problem, tiles, Numeric(), inputs)
        return max(counts.relative_error(outputs[name], expected[name]) for name in outputs)

    assert error(moved) > 0.1 or np.isnan(arrays["k_pages"]).any()
    for name in ("k_pages", "v_pages"):
        moved[name] = arrays[name].reshape(-1, 4, arrays[name].shape[1])[order].reshape(arrays[name].shape)
    assert error(moved) < 1e-12


def test_scores_that_overflow_a_naive_exponential():
    problem = PagedProblem.of(Problem(2, 30, 4, 3, batch=3, dtype="float64"), 4, 20).one_stream()
    arrays, _ = counts.example(problem)
    arrays["q"] *= 2500
    expected = counts.paged_reference.forward(problem, *(arrays[name] for name in ("q", "k_pages", "v_pages")))
    tiles = paged.schedule.make_tiles(problem, {"rows": 3, "cols": 5, "shared": 8, "piece": 9})
    _, outputs = counts.execute(paged.schedule, problem, tiles, Numeric(), arrays)
    assert max(counts.relative_error(outputs[name], expected[name]) for name in outputs) < 1e-10


# Other machines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("v_in_k", [False, True])
def test_a_run_is_a_pebble_game(v_in_k):
    problem = PagedProblem([1, 2, 1], [9, 7, 0], 2, 3, 2, table=[[0, 1, 2, 3, 4], [0, 1, 2, 5], []], v_in_k=v_in_k)
    traced = rb.trace("paged", problem, tiles={"rows": 2, "cols": 3, "shared": 2, "piece": 4})
    assert traced.verdict.cost == traced.count.words == counts.run("paged", problem, tiles=traced.count.tiles).words


def test_a_cache_that_holds_everything_reads_what_is_compulsory():
    """A line is a word here. Of the tables, only the entries of each node's first member are read."""
    problem = PagedProblem(
        [1, 1, 2], [11, 12, 9], 2, 3, 2, dtype="float64", table=[range(6), [0, 1, 2, 7, 8, 9], range(5)]
    )
    cache = CacheLevel("all", 8 * 2**12, 8, 2**12)
    simulated = rb.simulate("paged", problem, [cache], tiles={"rows": 4, "cols": 2, "shared": 2, "piece": 4})
    nodes = shared_nodes(problem.one_stream(), 2)
    entries = sum(-(-node.stop // 2) - node.first // 2 for node in nodes)
    bound = lower_bound(problem, 1).words - problem.n_q * 3 - 9  # reads of Q, K and V; 9 pages are used
    assert simulated.levels[0].reads == bound + entries


# Sharing ------------------------------------------------------------------------------------------


def test_sharing_divides_the_words_of_a_prefix():
    """16 sequences share 4096 of 4352 keys: 16 x 4352 keys are 4096 + 16 x 256; docs/lab/theory.md gives the ratio."""
    problem = PagedProblem.of(Problem(1, 4352, 128, batch=16, heads=32, kv_heads=8), 16, 4096)
    shared, alone = (count("paged", problem, tiles={"rows": 64, "shared": keys}).words for keys in (64, 10**6))
    keys, pages = 4096 + 16 * 256, 256 + 16 * 16
    rows, merged = 8 * 64, 2 * 8 * 64
    assert shared == keys * 8 * 256 + 8 * pages + 2 * rows * 128 + merged * 130 * 2 + rows * 129
    assert alone == 16 * (4352 * 256 + 272) * 8 + rows * (128 + 129)
    assert alone / shared == pytest.approx(8.28, abs=0.005)


def test_sharing_saves_nothing_if_a_block_holds_the_rows_of_one_sequence_only():
    """With 128 query heads on one key head (MLA), the plan shares nothing in a small cache, but does in a large one."""
    latent = Problem(1, 8192, 576, 512, batch=16, heads=128, kv_heads=1, dtype="bfloat16")
    problem = PagedProblem.of(latent, 16, 4096, v_in_k=True)
    small, large = (count("paged", problem, words=words) for words in (48 * 1024, 10**6))
    alone = count("paged", problem, tiles=small.tiles | {"shared": 10**6})
    assert small.words == alone.words
    assert large.tiles["shared"] == 64
    assert large.words < 0.7 * count("paged", problem, words=10**6, tiles=large.tiles | {"shared": 10**6}).words


TABLES = re.findall(r"^\| ([\d,]+) \| ([\d,| .]+) \|$", THEORY, flags=re.MULTILINE)


def test_the_tables_of_the_theory_are_counts():
    decode = {"batch": 16, "heads": 32, "kv_heads": 8}
    grouped, latent = TABLES[:4], TABLES[4:]
    assert [first for first, _ in TABLES] == ["0", "1,024", "4,096", "16,384", "49,152", "1,000,000", "4,000,000"]
    for prefix, rest in grouped:
        prefix = int(prefix.replace(",", ""))
        problem = PagedProblem.of(Problem(1, prefix + 256, 128, **decode), 16, prefix)
        shared = count("paged", problem, words=49152)
        alone = count("paged", problem, tiles=shared.tiles | {"shared": 10**6}).words
        bound = lower_bound(problem, 49152).words
        assert rest == f"{alone:,} | {shared.words:,} | {alone / shared.words:.2f} | {bound:,}"
    problem = PagedProblem.of(Problem(1, 4352, 576, 512, batch=16, heads=128, kv_heads=1), 16, 4096, v_in_k=True)
    for words, rest in latent:
        words = int(words.replace(",", ""))
        tiles = count("paged", problem, words=words).tiles
        alone, shared = (count("paged", problem, tiles=tiles | {"shared": keys}).words for keys in (10**6, 64))
        assert rest == f"{tiles['rows']:,} | {alone:,} | {shared:,} | {lower_bound(problem, words).words:,}"


def test_cutting_keys_into_pieces_costs_little():
    for keys, more in ((4096, 0.0054), (65536, 0.0059)):
        problem, tiles = PagedProblem([1], [keys], 16, 128, heads=32, kv_heads=8), {"rows": 64}
        whole, cut = (count("paged", problem, tiles=tiles | extra).words for extra in ({}, {"piece": 1024}))
        assert cut / whole - 1 == pytest.approx(more, abs=0.0001)


# The problem --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"queries": [1]}, "queries and keys must be lists of one length, .* got lengths 1 and 2"),
        ({"queries": [], "keys": []}, "at least one sequence; got lengths 0 and 0"),
        ({"keys": [8, -1]}, r"keys\[1\] must be at least 0, got -1"),
        ({"keys": [8.0, 1]}, "keys must be a list of whole numbers"),
        ({"page": 0}, "page must be a whole number of at least 1, got 0"),
        ({"heads": 3, "kv_heads": 2}, r"heads \(3\) must be a multiple of kv_heads \(2\)"),
        ({"table": [[0, 1]]}, "table must have a list of pages for each of 2 sequences, got 1"),
        ({"table": [[0, 1], [0]]}, r"table\[1\] must name 2 pages of 4 for keys\[1\] = 5, got 1"),
        ({"table": [[0, 1], [0, -1]]}, r"table\[1\]\[1\] must be at least 0, got -1"),
        ({"v_in_k": True, "d_v": 5}, r"d_v \(5\) must be at most d \(4\)"),
        ({"v_in_k": 1}, "v_in_k must be True or False, got 1"),
        ({"mask": Mask.causal()}, "mask must be Mask.full.*bottom-right.*got Mask.causal"),
        ({"mask": None}, "mask must be Mask.full"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"keys": [2**23, 1]}, "keys need 2,097,153 pages of 4, and at most 1,048,576 are counted"),
        ({"queries": [2**25, 1]}, "give at most 16,777,216 rows"),
        ({"keys": [2**60, 1], "page": 2**60}, "are too many to count"),
    ],
)
def test_bad_problems_are_refused(arguments, says):
    with pytest.raises(RedblueError, match=says):
        PagedProblem(**({"queries": [1, 1], "keys": [8, 5], "page": 4, "d": 4} | arguments))


def test_bad_calls_are_refused():
    problem = PagedProblem([1], [8], 4, 4)
    with pytest.raises(NotCovered, match="flash has no pass for direction 'paged': it has forward and backward"):
        count("flash", problem, words=100)
    with pytest.raises(NotCovered, match="paged has no pass for direction 'forward': it has paged"):
        count("paged", Problem(4, 4, 4), words=100)
    with pytest.raises(RedblueError, match="a paged problem is a rule without an index, got index='csr'"):
        count("paged", problem, words=100, index="csr")
    with pytest.raises(RedblueError, match='problem must be a Problem with direction="forward"'):
        PagedProblem.of(Problem(4, 4, 4, direction="backward"), 4)
    with pytest.raises(RedblueError, match="prefix must be at most 4, got 5"):
        PagedProblem.of(Problem(4, 4, 4), 4, 5)
    with pytest.raises(RedblueError, match="takes more than 20,000,000 moves"):
        counts.run("paged", PagedProblem([2000], [2**20], 2**20, 1), tiles={"rows": 1})


def test_unused_entries_and_numbers_of_pages_change_nothing():
    table = np.array([[7, 3, 99], [7, 8, -5]])
    problem = PagedProblem([1, 1], [8, 7], 4, 4, table=table)
    same = PagedProblem([1, 1], [8, 7], 4, 4, table=[[0, 1], [0, 2]])
    assert problem.table == ((7, 3), (7, 8))
    assert figures(count("paged", problem, words=100)) == figures(count("paged", same, words=100))
    assert lower_bound(problem, 9).words == lower_bound(same, 9).words
    assert hash(problem) != hash(same)
    assert problem != same
