"""The words of schedules: the papers' line counts and totals, and the leading constants of docs/lab/theory.md."""

import numpy as np
import pytest

from redblue import Mask, Problem, RedblueError, UnknownName, count, list_schedules, schedules
from redblue.lab import counts
from redblue.lab.sweep_family import TABLE, fewest, pairs_read
from redblue.machine import Numeric
from redblue.schedules.flash1 import printed_tiles

LARGE = 1 << 23  # n and d so large that lower-order terms are negligible
WIDE = 2048


def per_pair(schedule, x, direction="forward", n=LARGE, d=WIDE, **edges):
    """Words per pair at d / sqrt(M) = x, with the best tiles or with given edges."""
    problem, words = Problem(n, n, d, direction=direction), int((d / x) ** 2)
    return count(schedule, problem, **({"tiles": edges} if edges else {"words": words})).words / n**2


# Line counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "words"), [(4, 2336), (8, 1312), (16, 800)])
def test_flash_forward_line_count(rows, words):
    """2 n d + n + 2 n d T_r (FlashAttention-2's order) at n = 32, d = 4."""
    assert count("flash", Problem(32, 32, 4), tiles={"rows": rows}).words == words


def test_standard_line_counts():
    """4 n d + 4 n^2 forward, 8 n d + 7 n^2 backward, if every operand is read once."""
    assert count("standard", Problem(32, 32, 4), words=10**5).words == 4608
    assert count("standard", Problem(32, 32, 4, direction="backward"), words=10**5).words == 8 * 128 + 7 * 1024


@pytest.mark.parametrize(("cols", "words"), [(4, 4544), (8, 2496), (16, 1472)])
def test_flash1_forward_line_count(cols, words):
    """3 n d + 2 n + T_c (3 n d + 4 n) at n = 32, d = 4."""
    assert count("flash1", Problem(32, 32, 4), tiles={"rows": 4, "cols": cols}).words == words


@pytest.mark.parametrize(("n", "d", "cols"), [(32, 4, 4), (100, 7, 9), (64, 16, 100), (5, 3, 1)])
def test_flash1_line_counts_at_any_size(n, d, cols):
    blocks, tiles = -(-n // cols), {"rows": 2, "cols": cols}
    forward, backward = (count("flash1", Problem(n, n, d, direction=x), tiles=tiles) for x in ("forward", "backward"))
    assert forward.words == 3 * n * d + 2 * n + blocks * (3 * n * d + 4 * n)
    assert backward.words == 7 * n * d + blocks * (5 * n * d + 2 * n)


@pytest.mark.parametrize(("side", "n", "d"), [(4, 32, 8), (3, 9, 3), (5, 35, 20), (1, 6, 2)])
def test_saha_ye_line_count(side, n, d):
    """8 n^2 d / sqrt(M) + n^2 + n d + 2 n for M = 4 B^2, exact if B divides n and d."""
    words = count("saha_ye", Problem(n, n, d), words=4 * side**2).words
    assert words == 8 * n * n * d // (2 * side) + n * n + n * d + 2 * n


def test_saha_ye_reads_a_whole_times_where_its_side_does_not_divide_d():
    """In the printed count, A is read d / B times; in fact, once for each of the ceil(d / B) column blocks of O."""
    n, d, side = 32, 6, 4
    words = count("saha_ye", Problem(n, n, d), tiles={"side": side}).words
    assert words == 3 * n * n * d // side + n * n * 2 + n * n + n * d + 2 * n


def test_published_totals_of_gpt2_medium():
    """Forward and backward of one layer in 16 bit (n 1024, d 64, 16 heads, batch 64), line by line.

    25.2 GB for standard (every operand read once) and 4.61 GB for FlashAttention-1 with B_c = 384. The paper's measured
    values are 40.3 and 4.4 GB.
    """
    layer = [Problem(1024, 1024, 64, heads=16, batch=64, direction=x) for x in ("forward", "backward")]
    standard = sum(count("standard", p, words=2**22).words * p.bytes_per_word for p in layer)
    flash1 = sum(count("flash1", p, tiles={"rows": 64, "cols": 384}).words * p.bytes_per_word for p in layer)
    assert (standard, flash1) == (25_232_932_864, 4_605_345_792)
    assert printed_tiles(layer[0], 384 * 4 * 64) == (64, 384)


# Leading constants --------------------------------------------------------------------------------

X2 = {
    "flash": (4, 14),
    "flash_cluster": (4, None),
    "flash_onepass": (None, 16),
    "flash_kept": (4, 16),
}  # times x^2, forward and backward


@pytest.mark.parametrize("x", [0.1, 0.5, 0.8, 1, 1.5])
@pytest.mark.parametrize("name", X2)
def test_large_cache_constants(name, x):
    for direction, constant in zip(("forward", "backward"), X2[name], strict=True):
        if constant:
            assert 1 <= per_pair(name, x, direction) / (constant * x**2) < 1.03


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=str)
@pytest.mark.parametrize(("cluster", "rows"), [(2, 16), (4, 8), (3, 7)])
def test_a_cluster_moves_the_words_of_one_block_with_all_its_rows(mask, cluster, rows):
    """Copies take memory: c max(d, d_v) words for each block except the first."""
    problem, cols = Problem(200, 90, 8, 12, mask=mask), 5
    shared = count("flash_cluster", problem, tiles={"rows": rows, "cols": cols, "cluster": cluster})
    whole_block = count("flash", problem, tiles={"rows": rows * cluster, "cols": cols})
    assert (shared.reads, shared.writes, shared.flops) == (whole_block.reads, whole_block.writes, whole_block.flops)
    assert shared.peak == whole_block.peak + (cluster - 1) * cols * 12


@pytest.mark.parametrize("x", [0.1, 0.5, 1, 2])
def test_flash1_constants_with_the_printed_sizes(x):
    """12 x^2 and 20 x^2, with more words than M, because the printed sizes leave no space for the tile of scores."""
    words = int((WIDE / x) ** 2)
    for direction, constant in (("forward", 12), ("backward", 20)):
        problem = Problem(LARGE, LARGE, WIDE, direction=direction)
        printed = count("flash1", problem, tiles=printed_tiles(problem, words)._asdict())
        assert printed.words / LARGE**2 == pytest.approx(constant * x**2, rel=0.02)
        if (direction, x) != ("forward", 0.1):
            assert printed.peak > words


@pytest.mark.parametrize("x", [0.1, 0.2, 0.3])
def test_flash1_constants_with_sizes_that_fit(x):
    """Forward, the printed sizes do fit if M > 8 d^2. Backward, B_c must shrink to (M - 4 d^2) / 5 d."""
    assert per_pair("flash1", x) == pytest.approx(12 * x**2, rel=0.02)
    assert per_pair("flash1", x, "backward") == pytest.approx(25 * x**2 / (1 - 4 * x**2), rel=0.02)


@pytest.mark.parametrize("x", [0.5, 1, 2, 4])
def test_saha_ye_moves_twice_what_small_cache_does(x):
    assert per_pair("saha_ye", x) == pytest.approx(8 * x + 1, rel=0.01)  # if M / 4 is the square of a divisor of d


FORWARD, BACKWARD = TABLE["forward"], TABLE["backward"]


@pytest.mark.parametrize("x", [0.3, 0.5, 0.7, 0.9, 1, 1.2, 2**0.5, 1.6, 1.8, 2, 2.5, 3.4])
def test_every_constant_of_the_table(x):
    for name in FORWARD:
        assert 1 <= per_pair(name, x, d=2 * WIDE) / FORWARD[name](x) < 1.015, name
    for name in BACKWARD:
        assert 1 <= per_pair(name, x, "backward", d=2 * WIDE) / BACKWARD[name](x) < 1.01, name


def test_a_product_over_pairs_reads_them_a_whole_number_of_times():
    """At x = sqrt(2) these are 3 words per pair, not 2 x = 2.83. hybrid moves 6 words forward and 15 backward."""
    assert pairs_read(2**0.5) == pytest.approx(3)
    for name, direction, words in (
        ("hybrid", "forward", 6),
        ("hybrid", "backward", 15),
        ("small_cache", "backward", 17.66),
    ):
        assert per_pair(name, 2**0.5, direction, d=2 * WIDE) == pytest.approx(words, rel=0.012)


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_flash_keeps_four_more_words_per_row_than_its_queries_and_outputs(d):
    """A row takes 2 d + 4 words, so the limit for large n and M is (1 + 2 / d) 4 x^2, whatever d is."""
    n, words = 1 << 26, 1 << 18
    coefficient = count("flash", Problem(n, n, d), words=words).words / n**2
    assert coefficient == pytest.approx((1 + 2 / d) * 4 * d**2 / words, rel=0.02)


@pytest.mark.parametrize("x", [*np.geomspace(0.05, 6, 40), 2**0.5, 1.5**0.5, 1, 2])
def test_no_schedule_of_the_family_moves_fewer_words(x):
    """The family has every order of sweeps in which rows, keys, tiles of pairs or tiles of outputs stay."""
    for direction, forms in TABLE.items():
        words, _ = fewest(direction, x)
        assert words == pytest.approx(min(form(x) for form in forms.values()), rel=1e-9), direction


def best(x, direction):
    """The best schedule, other than variants, which may be better by lower-order terms only."""
    words = {name: per_pair(name, x, direction) for name in list_schedules(direction) if schedules.get(name).drop_in}
    lowest = min(words.values())
    own = {name: words_of for name, words_of in words.items() if not schedules.get(name).variant}
    assert min(own.values()) <= 1.01 * lowest
    return min(own, key=own.__getitem__)


@pytest.mark.parametrize(
    ("x", "name"), [(0.1, "flash"), (0.97, "flash"), (1.03, "hybrid"), (1.9, "hybrid"), (2.1, "small_cache")]
)
def test_which_forward_schedule_is_best(x, name):
    """The pieces meet at x = 1 and x = 2: M = d^2 and d^2 / 4."""
    assert best(x, "forward") == name


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (0.1, "flash"),
        (0.62, "flash"),
        (0.645, "spilled_ds"),
        (0.85, "spilled_ds"),
        (0.88, "hybrid"),
        (1, "hybrid"),
        (1.9, "hybrid"),
        (2.1, "small_cache"),
        (4, "small_cache"),
    ],
)
def test_which_backward_schedule_is_best(x, name):
    """The pieces meet at x = sqrt(2/5), sqrt(3/4) and 2: M = 5/2 d^2, 4/3 d^2 and d^2 / 4."""
    assert best(x, "backward") == name


@pytest.mark.parametrize(("x", "name"), [(0.5, "flash"), (0.8, "flash"), (1.5, "hybrid"), (3, "small_cache")])
def test_best_forward_schedule_of_an_ordinary_size_reaches_its_constant(x, name):
    n, d = 65536, 128
    words = {s: per_pair(s, x, n=n, d=d) for s in list_schedules("forward")}
    assert min(words, key=words.__getitem__) == name
    assert 1 <= words[name] / FORWARD[name](x) < 1.12


def test_causal_halves_every_leading_constant():
    n, words = 16384, 8192
    for direction in ("forward", "backward"):
        for name in {"forward": FORWARD, "backward": BACKWARD}[direction]:
            full = count(name, Problem(n, n, 128, direction=direction), words=words).words
            causal = count(name, Problem(n, n, 128, mask=Mask.causal(), direction=direction), words=words).words
            assert causal / full == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("chunk", "more"), [(64, 0), (100, 0), (32, 1), (16, 3), (24, 2)])
def test_chunks_of_queries_cost_their_accumulated_gradients(chunk, more):
    """Each chunk except the first reads and writes dK and dV once more; `hybrid` also reads V again."""
    problem, tiles = Problem(64, 40, 7, 5, direction="backward"), {"rows": 8, "cols": 16, "dq_rows": 4, "dk_rows": 9}
    for name, words in (("small_cache", 2 * 40 * (7 + 5)), ("hybrid", 2 * 40 * (7 + 5) + 40 * 5)):
        whole, cut = (count(name, problem, tiles=tiles | extra) for extra in ({}, {"chunk": chunk}))
        assert cut.words - whole.words == more * words


@pytest.mark.parametrize(
    ("mask", "walked"), [(Mask.full(), 4 * 64), (Mask.causal(), 8 * (1 + 1 + 2 + 2 + 3 + 3 + 4 + 4))]
)
def test_walks_of_spans_of_keys_cost_what_is_kept_for_each_row(mask, walked):
    """There are 16 walks of 64 keys each.

    Per walk and row, the log-sum-exp is written and read, or only read; hybrid reads Q again.
    """
    forward, backward = (Problem(64, 64, 7, 5, mask=mask, direction=way) for way in ("forward", "backward"))
    edges = {"rows": 8, "cols": 8, "span": 16}
    for name, q in (("small_cache", 0), ("hybrid", 7)):
        whole, cut = (count(name, forward, tiles=edges | extra) for extra in ({"span": 64}, {}))
        assert cut.words - whole.words == 2 * walked + q * (walked - 64)
        whole, cut = (count(name, backward, tiles=edges | extra) for extra in ({"span": 64}, {}))
        assert cut.words - whole.words == (q + 1 if q else 2) * (walked - 64)
    with pytest.raises(RedblueError, match=r"tile edge span \(12\) must be a multiple of cols \(8\)"):
        count("hybrid", forward, tiles=edges | {"span": 12})


def test_a_chunk_holds_whole_tiles():
    problem = Problem(64, 64, 8, direction="backward")
    with pytest.raises(RedblueError, match=r"tile edge chunk \(20\) must be a multiple of rows \(8\)"):
        count("hybrid", problem, tiles={"rows": 8, "chunk": 20})


def test_heads_add_up_and_groups_share_their_keys():
    one_head = count("flash", Problem(64, 64, 8), words=512).words
    assert count("flash", Problem(64, 64, 8, heads=3, batch=2), words=512).words == 6 * one_head
    grouped = count("flash", Problem(64, 64, 8, heads=4, kv_heads=1), words=512)
    assert grouped.words == count("flash", Problem(256, 64, 8), words=512).words


# The schedule that is not safe --------------------------------------------------------------------


@pytest.mark.parametrize(("score", "correct"), [(0, True), (-700, True), (700, True), (709.9, False), (-760, False)])
def test_saha_ye_overflows_as_its_docstring_says(score, correct):
    """All scores are equal. exp(709.78) is the largest finite float64, and exp(-746) is 0."""
    problem = Problem(3, 4, 4, 2, dtype="float64")
    arrays, _ = counts.example(problem)
    arrays["q"], arrays["k"] = np.full((3, 4), float(score)), np.full((4, 4), 0.5)  # 4 products, halved by 1 / sqrt(4)
    schedule = schedules.get("saha_ye")
    _, outputs = counts.execute(schedule, problem, schedule.make_tiles(problem, {"side": 2}), Numeric(), arrays)
    expected = np.broadcast_to(arrays["v"].mean(axis=0), (3, 2))
    error = counts.relative_error(outputs["out"], expected)
    assert error < 1e-12 if correct else error == np.inf


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 11.09), ("float32", 88.7), ("float64", 709.78)])
def test_the_scores_beyond_which_an_exponential_overflows(dtype, limit):
    assert np.log(np.float64(np.finfo(dtype).max)) == pytest.approx(limit, abs=0.03)


@pytest.mark.parametrize(("mask", "walked"), [(Mask.full(), 4 * 64), (Mask.causal(), 16 + 32 + 48 + 64)])
def test_spans_of_flash_cost_queries_and_partial_results(mask, walked):
    """Each walk reads its queries, and writes an output and a log-sum-exp, which are read once."""
    problem, edges = Problem(64, 64, 8, 12, mask=mask), {"rows": 16, "cols": 8}
    whole, cut = (count("flash", problem, tiles=edges | {"span": span}) for span in (64, 16))
    assert cut.reads - whole.reads == (walked - 64) * 8 + walked * 13
    assert cut.writes - whole.writes == walked * 13


def test_an_unknown_direction_has_no_schedules_to_list():
    with pytest.raises(UnknownName, match="unknown direction 'forwards'"):
        list_schedules("forwards")
