"""Paged problems in the laboratory: bounds, plans, texts and JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import redblue as rb
from redblue import Mask, PagedProblem, Problem, RedblueError, TooFewWords, lower_bound, lower_bounds
from redblue.cli.main import app
from redblue.lab.text import shape_text
from support.command_line import run_json
from support.examples import examples
from support.paged_problems import attended, paged_problems

SIZES = ("--batch", "4", "--n-q", "1", "--n-k", "96", "--heads", "4", "--kv-heads", "2", "--d", "8")
PAGES = ("--page", "16", "--prefix", "64")
PROBLEM = PagedProblem.of(Problem(1, 96, 8, batch=4, heads=4, kv_heads=2), 16, 64)


# Bounds -------------------------------------------------------------------------------------------


@examples(100)
@given(problem=paged_problems())
def test_the_bound_counts_each_used_row_of_a_page_once(problem):
    pairs = [
        (b, query, key)
        for b, queries in enumerate(problem.queries)
        for query in range(queries)
        for key in attended(problem, b, query)
    ]
    rows = len({(b, query) for b, query, _ in pairs}) * problem.group
    cells = {(problem.table[b][key // problem.page], key % problem.page) for b, _, key in pairs}
    per_key = problem.d + (0 if problem.v_in_k else problem.d_v)
    out = sum(problem.queries) * problem.group * (problem.d_v + 1)
    per_head = rows * problem.d + len(cells) * per_key + out
    (bound,) = lower_bounds(problem, 7)
    assert bound.words == problem.kv_heads * per_head + len({page for page, _ in cells})
    assert bound.proved


@examples(40)
@given(problem=paged_problems(), words=st.integers(10, 10**4))
def test_the_bound_lies_below_every_plan(problem, words):
    try:
        assert lower_bound(problem, words).words <= rb.count("paged", problem, words=words).words
    except TooFewWords:
        assert words < 200


def test_the_schedule_meets_the_bound_with_one_head_and_room_for_all_rows():
    """If nothing is shared and each sequence has one block of rows, every word moves once."""
    problem = PagedProblem([1, 3, 2], [40, 17, 80], 16, 8, heads=4, kv_heads=1)
    assert rb.count("paged", problem, words=10**4).words == lower_bound(problem, 10**4).words


def test_sharers_add_their_queries_only():
    few, many = (PagedProblem.of(Problem(1, 64, 8, 5, batch=n), 16, 64) for n in (2, 10))
    assert lower_bound(many, 9).words - lower_bound(few, 9).words == 8 * (8 + 5 + 1)


# Plans and texts ----------------------------------------------------------------------------------


def test_plans_choose_what_sequences_share():
    plan = rb.plan(PROBLEM, "t4")
    assert [level.schedule for level in plan.levels] == ["paged"] * len(plan.levels)
    for level in plan.levels:
        counted = rb.count("paged", PROBLEM, tiles=level.tiles)
        assert (level.words, level.peak, level.flops) == (counted.words, counted.peak, counted.flops)
        assert level.peak <= level.usable_words
        assert level.bound.words <= level.words < 1.2 * level.bound.words
    assert plan.to_dict()["problem"]["table"][1] == (0, 1, 2, 3, 6, 7)
    assert plan.note == ""


def test_a_cache_too_large_for_the_machine_is_said_to_be():
    problem = PagedProblem([1], [2**26], 2**10, 1024, dtype="float64")
    assert rb.plan(problem, "t4").note.startswith("Q, the pages and O alone take")


def test_texts_tell_the_sequences():
    text = shape_text(PROBLEM).replace("\N{NO-BREAK SPACE}", " ")
    assert text == "d 8, 4 heads on 2 KV, 4 sequences, n_q 1, n_k 96, pages of 16 (12 in 24 places), full"
    other = PagedProblem([1, 4], [3, 5000], 16, 8, 4, v_in_k=True, mask=Mask.causal("bottom-right"))
    text = shape_text(other).replace("\N{NO-BREAK SPACE}", " ")
    assert (
        text == "d 8, d_v 4, 1 head, 2 sequences, n_q 1 to 4, n_k 3 to 5,000, pages of 16, V in K, causal bottom-right"
    )


# The command line ---------------------------------------------------------------------------------


def test_count_bound_and_plan_take_pages():
    counted = run_json("count", "paged", *SIZES, *PAGES, "--words", "2000")
    expected = rb.count("paged", PROBLEM, words=2000)
    assert (counted["words"], counted["tiles"]) == (expected.words, expected.tiles)
    assert counted["problem"]["table"] == [list(row) for row in PROBLEM.table]
    assert run_json("count", *SIZES, *PAGES, "--words", "2000", "--run") == [counted]
    assert run_json("bound", *SIZES, *PAGES, "--words", "9")[0]["words"] == lower_bound(PROBLEM, 9).words
    (plan,) = run_json("plan", *SIZES, *PAGES, "-m", "t4")
    assert [level["words"] for level in plan["levels"]] == [level.words for level in rb.plan(PROBLEM, "t4").levels]
    latent = run_json("count", "paged", *SIZES, *PAGES, "--d-v", "6", "--v-in-k", "--words", "2000")
    assert latent["problem"]["v_in_k"]
    assert latent["reads"] < counted["reads"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("count", *SIZES, "--prefix", "64", "--words", "2000"), "--prefix is for keys in pages: give --page, too"),
        (("bound", *SIZES, "--v-in-k", "--words", "2000"), "--v-in-k is for keys in pages: give --page, too"),
        (("plan", *SIZES, "--page", "0"), "page must be a whole number of at least 1, got 0"),
        (("plan", "llama-3-8b", "--page", "16"), "--page cannot be given with a model"),
        (("count", *SIZES, *PAGES, "--mask", "causal", "--words", "99"), "bottom-right"),
        (
            ("count", *SIZES, *PAGES, "--direction", "backward", "--words", "99"),
            'must be a Problem with direction="forward"',
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, says):
    with pytest.raises(RedblueError, match=says):
        CliRunner().invoke(app, arguments, standalone_mode=False, catch_exceptions=False)
