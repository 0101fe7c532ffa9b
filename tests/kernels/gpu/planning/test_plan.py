"""Plans of GPU kernels: they fit by the model, move the fewest words, and explain why nothing fits."""

import contextlib
import itertools
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from redblue import RedblueError, list_memories, memory, schedules
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning.card import OTHER, Card, card_named
from redblue.kernels.gpu.planning.footprints import KERNELS, MIN_SPAN, ON_ONE_GRID
from redblue.kernels.gpu.planning.plan import ALIKE, MAX_CANDIDATES, Unplanned, candidates, plan
from redblue.kernels.gpu.planning.resources import pipelines, resources
from redblue.kernels.sizes import Sizes
from redblue.problem import Problem
from support.examples import thorough

GPUS = [name for name in list_memories() if memory(name).kind == "gpu"]
CARDS = {name: card_named(name) for name in ("t4", "a100-sxm", "rtx-4090", "h100-sxm", "b200", "rtx-5090", "mi300x")}
DIRECTIONS = ("forward", "backward")


def sizes_of(d, d_v=None, n=4096, heads=16, group=1):
    return Sizes((2,), heads // group, group, n, n, d, d_v or d)


@pytest.mark.parametrize("name", GPUS)
def test_cards_of_the_catalogue(name):
    machine = memory(name)
    if "registers_bytes" not in machine.facts:
        with pytest.raises(RedblueError, match=f"which {name} is not"):
            card_named(name)
        return
    card = card_named(name)
    assert card.shared_bytes == machine.levels[0].capacity_bytes
    assert card.multiprocessors == machine.levels[0].count
    assert card.l2_bytes >= 2**19
    assert (card.arch == OTHER) == (machine.vendor != "NVIDIA")
    if machine.vendor == "NVIDIA":
        assert card.registers == 65536


def test_a_cpu_is_no_card():
    with pytest.raises(RedblueError, match="zen5-server is not such a GPU"):
        card_named("zen5-server")


HEADS = {  # d and d_v
    "float16": ((16, 16), (40, 40), (80, 128), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)),
    "float32": ((40, 40), (192, 128), (512, 512)),
}


@pytest.mark.parametrize(
    "options", [PlanOptions(), PlanOptions(True, True, True, False), PlanOptions(listed=True)], ids=str
)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["float16", thorough("float32")])
@pytest.mark.parametrize("name", CARDS)
def test_planned_launches_fit_by_the_model(name, dtype, direction, options):
    card = CARDS[name]
    for d, d_v in HEADS[dtype]:
        sizes = sizes_of(d, d_v)
        launches = ()
        with contextlib.suppress(Unplanned):  # flash does not cover every case
            launches = candidates(direction, sizes, dtype, card, options)
        assert len(launches) <= MAX_CANDIDATES
        assert len(set(launches)) == len(launches)
        for launch in launches:
            needed = [
                resources(part.footprint(launch.tiles, sizes, options), dtype, card, *launch.settings(i))
                for i, part in enumerate(KERNELS[launch.kernel, direction].parts)
            ]
            assert max(footprint.shared_bytes for footprint in needed) == launch.shared_bytes <= card.shared_bytes
            edges = launch.tiles._asdict()
            if options.listed:  # otherwise with_chunk would change the planned tiles
                assert all(edges[edge] == edges[other] for edge, other in ON_ONE_GRID.items() if edge in edges)
            span, _ = edges.pop("span", sizes.n_k), edges.pop("chunk", 0)
            assert all(edge & (edge - 1) == 0 for edge in edges.values()), "Triton's tiles are powers of two"
            assert span >= sizes.n_k or span % edges["cols"] == 0
            slices = edges.get("depth", 1)
            assert all(edges[edge] % slices == 0 for edge in ("rows", "cols")), (
                "slices divide the tiles of spilled arrays"
            )
            assert (launch.chunk > 0) == (launch.kernel != "flash")
            assert launch.stages == 1 or pipelines(card)


def test_no_launch_that_fits_moves_fewer_words():
    """Compare with every launch that fits, at a size that occupies all multiprocessors."""
    card, sizes = CARDS["rtx-4090"], sizes_of(192)
    problem = Problem(n_q=sizes.n_q, n_k=sizes.n_k, d=192)
    flash_forward = schedules.get("flash").passes["forward"]
    (part,) = KERNELS["flash", "forward"].parts
    words = {}
    for rows, cols, warps, stages in itertools.product((16, 32, 64, 128), (16, 32, 64, 128), (4, 8), (1, 2, 3)):
        tiles = flash_forward.tile_type(rows, cols, sizes.n_k)
        needed = resources(part.footprint(tiles, sizes, PlanOptions()), "float16", card, warps, stages)
        if needed.shared_bytes <= card.shared_bytes and needed.pressure <= 1:
            words[tiles, warps, stages] = flash_forward.cost(problem, tiles).words
    planned = plan("forward", sizes, "float16", card, schedule="flash")
    assert words[planned.tiles, planned.warps, planned.stages] <= ALIKE * min(words.values())


def test_more_shared_memory_never_moves_more_words():
    sizes = sizes_of(256)
    problem = Problem(n_q=sizes.n_q, n_k=sizes.n_k, d=256)
    flash_forward = schedules.get("flash").passes["forward"]
    moved = []
    for kib in (48, 64, 99, 163, 227):
        card = Card(arch=80, shared_bytes=kib << 10)
        moved.append(flash_forward.cost(problem, plan("forward", sizes, "float16", card, schedule="flash").tiles).words)
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[-1]


@pytest.mark.parametrize(
    ("heads", "n_q", "n_k"), [(1, 512, 512), (1, 2048, 2048), (8, 1, 32768), (1, 1, 2048), (32, 4096, 4096)]
)
def test_few_queries_still_occupy_every_multiprocessor(heads, n_q, n_k):
    """With few queries, blocks get fewer rows, and keys are cut into spans."""
    card = CARDS["h100-sxm"]
    t = plan("forward", Sizes((1,), heads, 1, n_q, n_k, 64, 64), "float16", card, schedule="flash").tiles
    spans = -(-n_k // t.span)
    blocks = heads * -(-n_q // t.rows) * spans
    assert blocks >= 0.7 * card.multiprocessors or (t.rows == 16 and n_k // spans <= 2 * MIN_SPAN)
    assert spans == 1 or n_k // spans >= MIN_SPAN
    assert n_q < 4096 or (t.rows, spans) == (64, 1)


def test_lengths_that_round_up_to_the_same_power_of_two_share_a_plan():
    card = CARDS["h100-sxm"]
    first, other = Sizes((2, 3), 8, 4, 1000, 1500, 64, 64), Sizes((6,), 8, 4, 1024, 2048, 64, 64)
    assert plan("forward", first, "bfloat16", card) is plan("forward", other, "bfloat16", card)


@pytest.mark.parametrize("n", [0, 1])
def test_tiny_problems_are_planned(n):
    for direction in DIRECTIONS:
        assert plan(direction, Sizes((1,), 1, 1, n, n, 1, 1), "float32", Card()).tiles.rows >= 16


def test_a_schedule_that_does_not_fit_is_replaced_with_a_warning():
    """Where no tile of flash fits, small_cache runs instead. The warning names the memory that flash needs."""
    card, sizes = Card(arch=80, shared_bytes=24 << 10), sizes_of(768)
    with pytest.warns(UserWarning, match="24,576; small_cache runs instead") as caught:
        planned = plan("forward", sizes, "float16", card, schedule="flash")
    assert (planned.kernel, planned) == ("small_cache", plan("forward", sizes, "float16", card))
    with warnings.catch_warnings():  # the warning comes once
        warnings.simplefilter("error")
        assert plan("forward", sizes, "float16", card, schedule="flash") == planned
        # The amount of shared memory in the message is enough
        need_bytes = int(str(caught[0].message).split(" bytes")[0].split()[-1].replace(",", ""))
        enough = card._replace(shared_bytes=need_bytes)
        assert plan("forward", sizes, "float16", enough, schedule="flash").kernel == "flash"


def test_if_no_kernel_fits_the_error_names_the_memory_needed():
    with pytest.raises(Unplanned, match="has 1,500") as caught:
        plan("forward", sizes_of(768), "float16", Card(arch=80, shared_bytes=1500))
    error = caught.value
    assert error.have_bytes == 1500 < error.need_bytes == error.least.shared_bytes
    assert f"{error.need_bytes:,} bytes" in str(error)


@pytest.mark.thorough
def test_flash_hybrid_and_small_cache_follow_one_another_as_d_grows():
    """With less shared memory, small_cache begins at a smaller d."""
    order = {name: i for i, name in enumerate(("flash", "hybrid", "small_cache"))}
    first_small_cache = {}
    for name in ("rtx-4090", "a100-sxm", "h100-sxm"):
        kernels = [plan("forward", sizes_of(d), "float16", CARDS[name]).kernel for d in (64, 128, 256, 320, 512, 1024)]
        assert kernels[0] == "flash"
        assert kernels[-1] == "small_cache"
        assert kernels == sorted(kernels, key=order.__getitem__)
        first_small_cache[name] = kernels.index("small_cache")
    assert first_small_cache["rtx-4090"] <= first_small_cache["a100-sxm"] <= first_small_cache["h100-sxm"]


def test_chunks_stay_in_the_l2_and_keep_all_multiprocessors_busy():
    for name, d in itertools.product(("rtx-4090", "h100-sxm"), (512, 1024)):
        card = CARDS[name]
        launch = plan("forward", sizes_of(d, n=16384), "float16", card, schedule="small_cache")
        t = launch.tiles
        assert launch.chunk % max(t.rows, t.out_rows) == 0
        assert launch.chunk // t.out_rows * (d // t.out_cols) >= 0.75 * card.multiprocessors
        assert -16384 % launch.chunk < 0.1 * launch.chunk, "the last chunk is nearly full"
        assert 2 * launch.chunk * 16384 <= max(card.l2_bytes / 2, 2 * 16384 * t.out_rows * card.multiprocessors)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("schedule", ["hybrid", "small_cache"])
def test_spilled_memory_is_bounded_at_any_length(schedule, direction):
    arrays, chunks = {"forward": 1, "backward": 2}[direction], {}
    for n in (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20):
        launch = plan(direction, sizes_of(512, n=n), "float16", CARDS["h100-sxm"], schedule=schedule)
        chunks[n] = launch.chunk
        assert 2 * arrays * launch.chunk * n <= 2 << 30
        assert launch.chunk <= 8192
    assert chunks[1 << 20] < chunks[1 << 16] <= chunks[1 << 14]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("schedule", ["hybrid", "small_cache"])
def test_spilled_memory_is_bounded_where_a_chunk_has_several_streams(schedule, direction):
    arrays, n_k = {"forward": 1, "backward": 2}[direction], 1 << 20
    sizes = Sizes((1,), 64, 1, 256, n_k, 512, 512)
    launch = plan(direction, sizes, "float16", CARDS["h100-sxm"], schedule=schedule)
    assert 2 * arrays * launch.chunk * n_k <= 2 << 30


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["rtx-4090", "h100-sxm", "b200"])
def test_bias_and_dropout_need_other_launches(name, direction):
    """A launch planned without a bias and dropout would spill registers with them."""
    card, sizes, with_both = CARDS[name], sizes_of(128), PlanOptions(bias=True, dropout=True)
    without = plan(direction, sizes, "float16", card)
    parts = KERNELS["flash", direction].parts
    needed = [
        resources(part.footprint(without.tiles, sizes, with_both), "float16", card, without.warps, 2) for part in parts
    ]
    assert max(footprint.pressure for footprint in needed) > 1
    launch = plan(direction, sizes, "float16", card, with_both)
    needed = [
        resources(part.footprint(launch.tiles, sizes, with_both), "float16", card, launch.warps, 2) for part in parts
    ]
    assert max(footprint.pressure for footprint in needed) <= 1
    assert launch != without


def test_a_softcap_spills_one_more_array_backward():
    card, sizes = CARDS["h100-sxm"], sizes_of(1024, n=1024)
    chunks = [plan("backward", sizes, "float16", card, PlanOptions(softcap=cap)).chunk for cap in (False, True)]
    assert chunks[1] < chunks[0]


def test_hopper_gets_whole_rows_per_warp_and_each_kernel_its_own_settings():
    """The tiles that were fastest on an H100 are planned, or are among the candidates."""
    card = CARDS["h100-sxm"]

    def tiles(d, direction, **options):
        launches = candidates(direction, sizes_of(d, n=8192, heads=32), "bfloat16", card, PlanOptions(**options))
        return [(*launch.tiles[: 2 if direction == "forward" else 4], launch) for launch in launches]

    (*first, launch), *others = tiles(128, "forward")
    assert (*first, launch.warps, launch.stages) == (128, 128, 8, 3)
    assert {(256, 64), (64, 64), (128, 64)} <= {tuple(edges) for *edges, launch in others if launch.kernel == "flash"}
    (*first, launch), *_ = tiles(64, "forward")
    assert (*first, launch.warps, launch.stages) == (64, 64, 4, 3)
    (*first, launch), *others = tiles(128, "backward")
    assert (*first, launch.parts) == (128, 64, 64, 128, ((8, 3), (8, 3)))
    assert any(edges[2:] == [64, 64] and launch.parts == ((8, 3), (4, 2)) for *edges, launch in others)
    (*first, launch), *_ = tiles(128, "backward", listed=True)
    assert (first[2:], launch.settings(1)) == ([32, 128], (8, 3))  # the bits of mask lists take registers


def test_settings_of_one_kernel_serve_all_unless_they_have_their_own():
    launch = plan("backward", sizes_of(128), "float16", CARDS["a100-sxm"])
    assert launch.parts == ()
    assert launch.settings(0) == launch.settings(1) == (launch.warps, launch.stages)


def test_hopper_gets_three_stages():
    for d, direction in itertools.product((64, 128), DIRECTIONS):
        assert plan(direction, sizes_of(d), "float16", CARDS["h100-sxm"]).stages == 3
