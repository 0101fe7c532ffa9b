import pytest

import redblue as rb
from redblue import schedules
from redblue.catalogue.memories import Level, Memory
from redblue.lab import planner


def two_level(words: int, step: int = 1) -> Memory:
    """A machine with a software-managed memory of `words` 16-bit words."""
    near = Level("scratchpad", 2 * words, 1, 1e12)
    return Memory("toy", "toy", "cpu", (near, Level("DRAM", None, 1, 1e9)), {"float16": 1e12}, step)


@pytest.mark.parametrize(
    ("x", "regime", "schedule"),
    [(0.5, "large-cache", "flash"), (0.99, "large-cache", "flash"), (1.5, "between", "hybrid"),
     (1.7, "between", "hybrid"), (2.2, "small-cache", "small_cache"), (4, "small-cache", "small_cache")],
)  # fmt: skip
def test_three_regimes(x, regime, schedule):
    problem = rb.Problem(1 << 20, 1 << 20, 1024)
    level = rb.plan(problem, two_level(int((1024 / x) ** 2))).levels[0]
    assert (level.regime, level.schedule) == (regime, schedule)


def test_dividing_points():
    """At n >> d >> 1 the best schedule changes at M = d^2 and d^2 / 4 (docs/lab/theory.md), within a few percent."""
    d, n = 4096, 1 << 20
    problem = rb.Problem(n, n, d)

    def best(words):
        return rb.plan(problem, two_level(int(words))).levels[0].schedule

    assert [best(d**2 * factor) for factor in (1.1, 0.9)] == ["flash", "hybrid"]
    assert [best(d**2 / 4 * factor) for factor in (1.1, 0.85)] == ["hybrid", "small_cache"]
    assert planner.regime(d, d**2) == "large-cache"
    assert planner.regime(d, d**2 - 1) == "between"
    assert planner.regime(d, d**2 // 4) == "between"
    assert planner.regime(d, d**2 // 4 - 1) == "small-cache"


@pytest.mark.parametrize(
    ("name", "bytes_per_word", "d_star"),
    [
        *(("gtx-1060", size, d) for size, d in ((4, 110), (2, 156), (1, 221))),
        *(("v100-sxm2", size, d) for size, d in ((4, 156), (2, 221), (1, 313))),
        *(("t4", size, d) for size, d in ((4, 128), (2, 181), (1, 256))),
        *(("a100-sxm", size, d) for size, d in ((4, 204), (2, 288), (1, 408))),
        *(
            (name, size, d)
            for name in ("rtx-3090", "rtx-4090", "rtx-5090")
            for size, d in ((4, 159), (2, 225), (1, 318))
        ),
        *((name, size, d) for name in ("h100-sxm", "h200-sxm", "b200") for size, d in ((4, 241), (2, 340), (1, 482))),
        *(("mi300x", size, d) for size, d in ((4, 128), (2, 181), (1, 256))),
        *(("cortex-m7", size, d) for size, d in ((4, 64), (2, 90), (1, 128))),
    ],
)
def test_largest_head_dimension(name, bytes_per_word, d_star):
    """floor(sqrt(M)), where M is one instance of the fastest memory, in fp32, 16-bit and 8-bit words."""
    level = rb.memory(name).levels[0]
    assert planner.largest_head_dimension(level, bytes_per_word) == d_star


@pytest.mark.parametrize(
    ("level", "kib", "stars"),
    [("L1d", 48, (110, 156)), ("L1d", 32, (90, 128)), ("L2", 1024, (512, 724)), ("L2", 2048, (724, 1024))],
)
def test_largest_head_dimension_of_cpu_caches(level, kib, stars):
    cache = Level(level, kib * 1024)
    assert tuple(planner.largest_head_dimension(cache, size) for size in (4, 2)) == stars


@pytest.mark.parametrize("name", ["h100-sxm", "rtx-4090", "zen5-server", "mi300x", "sapphire-rapids-server"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("d", [64, 128, 512])
def test_every_level_fits_and_nests(name, direction, d):
    problem = rb.Problem(4096, 4096, d, heads=8, kv_heads=2, dtype="float32", direction=direction)
    plan = rb.plan(problem, name)
    inner = {}
    ends = {problem.one_stream().n_q, problem.n_k, d}
    for level in plan.levels:
        assert level.schedule is not None
        assert level.peak is not None
        assert level.peak <= level.capacity_words
        assert level.free_words == min(level.candidates.values()) == level.candidates[level.schedule]
        assert level.words >= level.free_words >= level.bound.words
        assert level.bytes == 4 * level.words
        assert level.gap is not None
        assert level.gap >= level.free_words / level.bound.words >= 1
        assert level.free_words <= 12 * level.bound.words
        for edge, length in level.tiles.items():
            assert length % inner.get(edge, 1) == 0 or length in ends, (edge, length, inner)
        inner |= level.tiles
    steps = {length % rb.memory(name).tile_multiple for length in plan.levels[0].tiles.values()}
    assert steps == {0}


def test_nesting_never_changes_the_schedule():
    """Tiles of the inner levels use L2 badly here, but the regime's schedule is chosen all the same."""
    level = next(x for x in rb.plan(rb.Problem(4096, 4096, 512), "zen5-server").levels if x.boundary == "L2/L3")
    assert level.schedule == "flash"
    assert level.words > level.free_words


@pytest.mark.parametrize(("name", "share"), [("L1d", 0.75), ("L2", 0.75), ("Infinity Cache", 0.75), ("SLC", 0.75),
                                             ("VMEM", 1), ("shared memory", 1), ("registers", 1)])  # fmt: skip
def test_tiles_leave_room_in_a_cache_that_hardware_fills(name, share):
    """The shares are in docs/results/real-caches.md. Software-managed memory is filled completely."""
    machine = Memory("toy", "toy", "cpu", (Level(name, 1 << 16), Level("DRAM", None)))
    level = rb.plan(rb.Problem(4096, 4096, 64), machine).levels[0]
    assert (level.capacity_words, level.usable_words) == (1 << 15, share * (1 << 15))
    assert 0.95 * level.usable_words < level.peak <= level.usable_words


def test_words_and_times_add_up():
    problem = rb.Problem(1024, 1024, 64, heads=3, batch=2)
    plan = rb.plan(problem, two_level(8192))
    level = plan.levels[0]
    closed = rb.count(level.schedule, problem, tiles=level.tiles)
    assert (closed.words, closed.peak, closed.flops) == (level.words, level.peak, level.flops)
    assert level.seconds == pytest.approx(2 * closed.words / 1e9)
    assert plan.arithmetic_seconds == pytest.approx(closed.flops / 1e12)
    times = {"scratchpad/DRAM": level.seconds, "arithmetic": plan.arithmetic_seconds}
    assert plan.limit == max(times, key=times.__getitem__)
    assert plan.seconds == max(level.seconds, plan.arithmetic_seconds)


def test_narrow_types_without_arithmetic_are_widened():
    machine = Memory("toy", "toy", "cpu", two_level(8192).levels, {"float32": 1e9})
    assert rb.plan(rb.Problem(64, 64, 64, dtype="bfloat16"), machine).arithmetic_dtype == "float32"
    assert rb.plan(rb.Problem(64, 64, 64, dtype="float64"), machine).arithmetic_seconds is None


def test_what_is_not_known_is_not_claimed():
    levels = two_level(8192).levels
    unknown = rb.plan(rb.Problem(64, 64, 64), Memory("toy", "toy", "cpu", levels, {}))
    assert unknown.unknown == ("arithmetic",)
    assert "among the known resources (not known: arithmetic)" in " ".join(str(unknown).split())
    known = rb.plan(rb.Problem(64, 64, 64), two_level(8192))
    assert known.unknown == ()
    assert "among" not in str(known)


def test_a_problem_that_its_memory_cannot_hold_says_so():
    plan = rb.plan(rb.Problem(4096, 4096, 128, heads=32, dtype="float32"), "cortex-m7")
    assert "Q, K, V and O alone take" in plan.note
    assert rb.plan(rb.Problem(64, 64, 8), "cortex-m7").note == ""


def test_where_nothing_fits_the_level_says_the_least_that_would():
    level = rb.plan(rb.Problem(64, 64, 64), two_level(2)).levels[0]
    assert (level.schedule, level.words, level.gap) == (None, None, None)
    assert "needs a cache of at least" in level.why
    assert "none fits" in str(rb.plan(rb.Problem(64, 64, 64), two_level(2)))


def test_schedules_that_do_not_drop_in_are_never_planned():
    plan = rb.plan(rb.Problem(512, 512, 64, direction="backward"), "h100-sxm")
    able = schedules.covering(plan.problem)
    assert set(plan.levels[0].candidates) == {name for name in able if schedules.get(name).drop_in}


def test_a_plan_prints_as_a_table_and_as_data():
    plan = rb.plan(rb.Problem(512, 512, 64), "h100-sxm")
    assert "shared memory/L2" in str(plan)
    assert plan.to_dict()["levels"][0]["schedule"] == plan.levels[0].schedule
    assert plan.to_dict()["problem"]["mask"] == "Mask.full()"


def test_a_users_own_file_works_where_a_name_does(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[mine]\ntitle = "Mine"\nkind = "cpu"\n[[mine.levels]]\nname = "L1"\ncapacity = { kib = 32 }\n'
        '[[mine.levels]]\nname = "DRAM"\nbandwidth = { gb_per_second = 10 }\n'
    )
    assert rb.plan(rb.Problem(256, 256, 64), path).levels[0].capacity_words == 16384


def test_unknown_memories_name_the_nearest():
    with pytest.raises(rb.UnknownName, match="unknown memory 'h100'; nearest: h100-sxm"):
        rb.plan(rb.Problem(8, 8, 8), "h100")
