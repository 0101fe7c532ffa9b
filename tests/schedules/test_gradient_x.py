"""The gradient with respect to X (arXiv 2410.09397): the reference, its schedules, and their constants."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import redblue as rb
from redblue import Mask, Problem, RedblueError, TooFewWords, count, schedules
from redblue.catalogue.memories import Level, Memory
from redblue.cli.main import app
from redblue.lab import planner, reference
from redblue.lab.sweep_family import pairs_read
from support.examples import examples, thorough
from support.spaces import problems

NAMES = LARGE, DP, HYBRID, SMALL = "gradient_x", "gradient_x_dp", "gradient_x_hybrid", "gradient_x_small"
EVERY = pytest.mark.parametrize("name", NAMES)
MASKS = [Mask.full(), Mask.causal(align="bottom-right"), Mask.sliding_window(1, 0)]  # the last leaves a row empty


def problem_of(n, d, **more):
    return Problem(n, n, d, direction="gradient_x", **more)


def figures(c):
    return c.reads, c.writes, c.flops


# The reference ------------------------------------------------------------------------------------


def sample(n_q=7, n_k=5, d=3, d_v=4):
    rng = np.random.default_rng(3)
    shapes = {"a1": (n_q, d), "a2": (n_k, d), "a3": (n_k, d), "e": (n_q, d_v), "x": (d, d), "y": (d, d_v)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_the_reference_is_the_derivative_of_the_loss(mask):
    arrays, attends, step = sample(), mask.to_dense(7, 5), 1e-6

    def loss(x):
        a = arrays
        out = reference.forward(a["a1"] @ x / np.sqrt(3), a["a2"], a["a3"] @ a["y"], attends).out
        return 0.5 * ((out - a["e"]) ** 2).sum()

    dx = reference.gradient_x(**arrays, attends=attends).dx
    for index in np.ndindex(3, 3):
        move = np.zeros((3, 3))
        move[index] = step
        slope = (loss(arrays["x"] + move) - loss(arrays["x"] - move)) / (2 * step)
        assert dx[index] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_the_reference_is_what_autograd_computes(mask):
    """Autograd of the paper's formula D^-1 exp(A1 X A2^T / d) A3 Y, with 0 for rows that attend nothing."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the cross-check is left out")
    arrays, attends = sample(), mask.to_dense(7, 5)
    t = {name: torch.tensor(array, requires_grad=name == "x") for name, array in arrays.items()}
    weights = torch.exp(t["a1"] @ t["x"] @ t["a2"].T / 3) * torch.tensor(attends)
    total = weights.sum(dim=1, keepdim=True)
    f = weights / torch.where(total == 0, torch.ones_like(total), total)
    (0.5 * ((f @ t["a3"] @ t["y"] - t["e"]) ** 2).sum()).backward()
    dx = reference.gradient_x(**arrays, attends=attends).dx
    assert np.abs(dx).max() > 0.01
    assert np.abs(t["x"].grad.numpy() - dx).max() < 1e-12


@EVERY
def test_nothing_of_size_n_squared_is_written_unless_it_says_so(name):
    n, d = 4096, 32
    writes = count(name, problem_of(n, d), words=4096).writes
    assert (writes > n * n) == schedules.get(name).spills


# The constants (docs/lab/theory.md) -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x", "leading"),
    [
        *((LARGE, x, 10 * x**2) for x in (0.1, 0.5, 1, 1.5)),
        *((DP, x, 7 * x**2 + 2) for x in (0.7, 0.82, 0.9, 1)),
        *((HYBRID, x, 2 * x**2 + 3 + 2 * pairs_read(x)) for x in (0.8, 1, 1.2, 2**0.5, 1.8, 2)),
        *((SMALL, x, 4 * x + 3 + 2 * pairs_read(x)) for x in (1, 2**0.5, 1.5, 2, 4)),
    ],
)
def test_leading_constants(name, x, leading):
    """docs/lab/theory.md, "The regimes": words per pair, d = d_v and n >> d."""
    n, d = 1 << 22, 1024
    coefficient = count(name, problem_of(n, d), words=int((d / x) ** 2)).words / n**2
    assert leading <= coefficient < (1.025 if x > 0.1 else 1.4) * leading


@pytest.mark.parametrize(
    ("x", "name"),
    [(0.3, LARGE), (0.8, LARGE), (0.84, DP), (0.97, DP), (1.05, HYBRID), (1.9, HYBRID), (2.2, SMALL), (3, SMALL)],
)
def test_which_schedule_is_best(x, name):
    """The forms meet at x = sqrt(2/3), 1 and 2: M = 3/2 d^2, d^2 and d^2 / 4."""
    n, d = 1 << 23, 4096
    words = {s: count(s, problem_of(n, d), words=int((d / x) ** 2)).words for s in NAMES}
    assert min(words, key=words.__getitem__) == name


def per_row(name, d, words):
    """The coefficient b if words are a n^2 + b n + c, which holds for every n that all edges divide.

    The edges are chosen for a cache of `words` words and a long problem.
    """
    schedule = schedules.get(name)
    tiles = schedule.tiles(problem_of(1 << 22, d), words)
    n = math.prod(tiles)  # far beyond what a problem may have, but exact

    def moved(times):
        problem = problem_of(1, d)
        for size in ("n_q", "n_k"):
            object.__setattr__(problem, size, times * n)
        return schedule.direction(problem).cost(problem, tiles).words

    once, two, three = (moved(times) for times in (1, 2, 3))
    curved = (three - 2 * two + once) // 2
    return (two - once - 3 * curved) / n


@pytest.mark.parametrize(("blocks", "expected"), [(0.06, 6), (0.25, 6), (1, 6), (2, 8), (4, 8)])
def test_the_term_n_d_cubed_over_m(blocks, expected):
    """Per row 6 d^3 / M + 10 d + 2 words if X and Y fit; 8 d^3 / M + 8 d + 2 if they are loaded in column blocks."""
    d = 2048
    words = int(d * d / blocks) + d + d // max(1, blocks)  # a block of columns, one row of A1, its results
    rest = (10 if expected == 6 else 8) * d + 2
    assert (per_row(LARGE, d, words) - rest) * words / d**3 == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("x", [1, 2, 6])
def test_the_term_n_d_squared_over_sqrt_m(x):
    """Per row 6 d^2 / sqrt(M) + 7 d + 5 words, if tiles of side sqrt(M) divide d."""
    d = 6144
    words = (d // x + 1) ** 2  # a square tile of that side, with its slices
    assert (per_row(SMALL, d, words) - 7 * d - 5) * math.sqrt(words) / d**2 == pytest.approx(6, rel=0.01)


@EVERY
def test_causal_halves_the_leading_constant(name):
    full, causal = (count(name, problem_of(1 << 16, 128, mask=mask), words=8192).words for mask in MASKS[:2])
    assert causal / full == pytest.approx(0.5, abs=0.02)


@EVERY
def test_heads_add_up(name):
    one_head = count(name, problem_of(64, 8), words=512).words
    assert count(name, problem_of(64, 8, heads=3, batch=2), words=512).words == 6 * one_head


# The search ---------------------------------------------------------------------------------------

LENGTHS = {
    "n_q": ("rows", "grad_rows", "out_rows", "q_rows", "g_rows", "dp_rows"),
    "n_k": ("cols", "grad_cols", "v_rows"),
    "d_v": ("out_cols", "v_cols"),
    "d": ("q_cols", "g_cols", "dx_rows", "dx_cols"),
}
SPILLED = [["rows", "cols", "out_rows", "out_cols"], *([f"{g}_rows", f"{g}_cols"] for g in ("q", "v", "g", "dx"))]
GROUPS = {  # edges whose words depend on each other
    LARGE: [["q_cols"], ["v_cols"], ["rows", "cols"], ["grad_rows", "grad_cols"]],
    DP: [["q_cols"], ["v_cols"], ["rows", "cols"], ["dp_rows"], ["g_rows"], ["dx_rows", "dx_cols"]],
    HYBRID: SPILLED,
    SMALL: SPILLED,
}


def fewest_words(name, problem, words):
    """By trying every tile, with slices of one word."""
    one_pass = schedules.get(name).direction(problem)
    length = {edge: getattr(problem, size) for size, edges in LENGTHS.items() for edge in edges}
    best = dict.fromkeys(one_pass.edges, 1)
    assert {edge for group in GROUPS[name] for edge in group} == set(best) - {"depth", "slices"}

    def cost(edges):
        return one_pass.cost(problem, one_pass.tile_type(**edges))

    if cost(best).peak > words:
        return None
    for group in GROUPS[name]:
        every = itertools.product(*(range(1, length[edge] + 1) for edge in group))
        tried = (best | dict(zip(group, lengths, strict=True)) for lengths in every)
        fitting = [(c.words, edges) for edges in tried if (c := cost(edges)).peak <= words]
        best = min(fitting, key=lambda candidate: candidate[0])[1]
    return cost(best).words


@pytest.mark.parametrize("name", [thorough(name) if name == HYBRID else name for name in NAMES])
@examples(15)
@given(data=st.data())
def test_search_equals_trying_every_tile(name, data):
    drawn, words, schedule = data.draw(problems("gradient_x")), data.draw(st.integers(5, 120)), schedules.get(name)
    small = Problem(
        min(drawn.n_q, 7), min(drawn.n_k, 7), min(drawn.d, 4), min(drawn.d_v, 4), direction="gradient_x",
        mask=drawn.mask.resized((drawn.n_q, drawn.n_k), (min(drawn.n_q, 7), min(drawn.n_k, 7))),
    )  # fmt: skip
    expected = fewest_words(name, small, words)
    if expected is None:
        with pytest.raises(TooFewWords):
            schedule.tiles(small, words)
    else:
        assert schedule.words(small, schedule.tiles(small, words)) == expected


@pytest.mark.parametrize("words", [90, 300, 900])
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=repr)
@pytest.mark.parametrize("name", [LARGE, DP])
def test_search_equals_trying_every_tile_of_a_larger_problem(name, mask, words):
    problem, schedule = Problem(23, 18, 9, 5, direction="gradient_x", mask=mask), schedules.get(name)
    assert schedule.words(problem, schedule.tiles(problem, words)) == fewest_words(name, problem, words)


@EVERY
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(300)], ids=repr)
def test_more_cache_never_costs_more_words(name, mask):
    words = [count(name, Problem(1024, 768, 64, mask=mask, direction="gradient_x"), words=2**k).words
             for k in range(10, 24)]  # fmt: skip
    assert words == sorted(words, reverse=True)


@EVERY
@examples(40)
@given(data=st.data())
def test_multiples_are_kept_unless_the_array_ends(name, data):
    problem, schedule = data.draw(problems("gradient_x")), schedules.get(name)
    step: int = data.draw(st.integers(1, 5))
    multiple: dict[str, int] = dict.fromkeys(schedule.direction(problem).edges, step)
    tiles = schedule.tiles(problem, 4000, multiple)._asdict()
    ends = {problem.n_q, problem.n_k, problem.d, problem.d_v}
    assert all(length % step == 0 or length in ends for length in tiles.values())


@EVERY
def test_sizes_beyond_the_search_are_refused(name):
    """n d^2 is counted too: with one key, n_q n_k d alone would not show that 64 bits are too few."""
    with pytest.raises(RedblueError, match="for gradient_x also n x d x d"):
        count(name, Problem(2**27, 1, 2**26, direction="gradient_x"), words=10**10)


# The planner and the command line -----------------------------------------------------------------


def two_level(words):
    cache = Level("cache", 2 * words, 1, 1e12)
    return Memory("toy", "toy", "cpu", (cache, Level("DRAM", 10**6, 1, 1e9)), {"float16": 1e12}, 1)


@pytest.mark.parametrize(("x", "name"), [(0.5, LARGE), (1.2, HYBRID), (3, SMALL)])
def test_the_planner_chooses_by_words(x, name):
    plan = rb.plan(problem_of(1 << 20, 1024, d_v=512), two_level(int((1024 / x) ** 2)))
    level = plan.levels[0]
    assert level.schedule == name
    assert set(level.candidates) == {*NAMES}
    assert level.words == level.free_words == min(level.candidates.values())
    assert plan.arithmetic_seconds == count(name, plan.problem, tiles=level.tiles).flops / 1e12
    assert plan.note.startswith("A1, A2, A3 and E alone take 7 GiB")


@pytest.mark.parametrize("d", [64, 512])
def test_every_level_of_a_plan_fits_and_nests(d):
    plan = rb.plan(Problem(4096, 2048, d, heads=8, direction="gradient_x"), "h100-sxm")
    ends, inner = {4096, 2048, d}, {}
    for level in plan.levels:
        assert level.schedule in (*NAMES, "gradient_x_once")
        counted = count(level.schedule, plan.problem, tiles=level.tiles)
        assert counted.peak <= level.capacity_words
        assert counted.words == level.words
        assert counted.words >= min(level.candidates.values()) >= level.bound.words
        for edge, length in level.tiles.items():
            within = inner.get(edge, inner.get(planner.SAME_MEANING.get(edge, edge), 1))
            assert length % within == 0 or length in ends
        inner |= level.tiles
    assert "gradient with respect to X" in str(plan).replace("\N{NO-BREAK SPACE}", " ")


def test_the_command_line_counts_and_plans_it():
    sizes = ["--direction", "gradient_x", "--n", "512", "--d", "128"]
    counted = CliRunner().invoke(app, ["count", *sizes, "--words", "12288"])
    assert counted.exit_code == 0, counted.output
    assert LARGE in counted.output
    assert SMALL in counted.output
    planned = CliRunner().invoke(app, ["plan", *sizes, "-m", "h100-sxm"])
    assert planned.exit_code == 0, planned.output
    assert LARGE in planned.output
