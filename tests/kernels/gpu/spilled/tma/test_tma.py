"""The kernels that load by TMA (spilled/tma) against float64, their plan, and calls that they do not support.

They run under Triton's interpreter, or, with TRITON_INTERPRET=0, on a GPU.
"""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue import Problem, schedules
from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import PlanOptions, Task
from redblue.kernels.gpu.planning.by_tma import MIN_D, Choice, Tile
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch, candidates, plan
from redblue.kernels.gpu.spilled.tma import launches
from redblue.kernels.gpu.versions import has_descriptors
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options
from redblue.kernels.sizes import SUMS, Sizes, array_forms
from redblue.meter.interpreter import counting
from redblue.op.pytorch import gpu, interpreted
from support.examples import thorough
from support.gpu import DEVICE, check, check_forward, interpreted_only

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("bfloat16_to_nearest", "nan_in_new_memory"),
    pytest.mark.skipif(not has_descriptors(), reason="needs descriptors"),
]
P, SUM = Tile(32, 64, 32, 4, 2, 2, 1), Tile(32, 32, 32, 4, 2)
SMALL = Choice(P, P, SUM, SUM, streams=2, multiprocessors=3)
TALL = Choice(
    Tile(64, 64, 32, 4, 2, 1, 0),
    Tile(32, 128, 32, 4, 2, 4),
    Tile(128, 32, 32),
    Tile(64, 32, 64),
    streams=3,
    multiprocessors=2,
)
FUSED = SMALL._replace(ds=None)
EARLY = SMALL._replace(ds=P._replace(resident=0, early=True))
choices = pytest.mark.parametrize("choice", [SMALL, TALL, FUSED, EARLY], ids=["small", "tall", "fused", "early"])
BANDS = [rb.Mask.full(), rb.Mask.causal(), rb.Mask.causal(align="bottom-right"), rb.Mask.sliding_window(None, 9)]


@pytest.fixture
def launch(monkeypatch):
    """Return a function that sets the choice, and a list that receives the kernels that run."""

    def launch(choice):
        names = []
        for direction in ("forward", "backward"):
            made = getattr(launches, direction)

            def recorded(task, choice, made=made):
                runs = made(task, choice)
                names.extend(run.kernel.__name__ for run in runs)
                return runs

            monkeypatch.setattr(launches, direction, recorded)
        monkeypatch.setattr(gpu, "plan", lambda *_: Launch("small_cache", choice))
        return names

    return launch


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


@choices
@pytest.mark.parametrize("mask", BANDS, ids=str)
@pytest.mark.parametrize("sizes", [(70, 100, 64, 40), (100, 70, 48, 96), (1, 130, 8, 64)], ids=str)
def test_bands(launch, choice, mask, sizes):
    n_q, n_k, d, d_v = sizes
    names = launch(choice)
    check(normal(2, n_q, d), normal(2, n_k, d), normal(2, n_k, d_v), mask=mask)
    assert {"references", "row_sums", "key_sums", "redo"} <= set(names)
    assert ("p_and_ds" in names) == (choice.ds is None)


@pytest.mark.parametrize("mask", BANDS[1:], ids=str)
def test_tiles_of_p_are_smaller_than_those_that_read_it(launch, mask):
    launch(TALL)
    check(normal(1, 260, 16), normal(1, 200, 16), normal(1, 200, 16), mask=mask)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("choice", [SMALL, thorough(EARLY)], ids=["small", "early"])
@pytest.mark.parametrize("mask", BANDS, ids=str)
def test_rows_in_pieces(launch, mask, choice, group):
    """dK and dV are summed over the pieces of the rows."""
    names = launch(choice._replace(queries=32, streams=group))
    check(normal(2, group, 70, 32), normal(2, 1, 90, 32), normal(2, 1, 90, 40), mask=mask)
    assert names.count("redo") == 3 * 2
    assert names.count("key_sums") == 2 * 3 * 2


@choices
@pytest.mark.parametrize("group", [2, 3])
def test_heads_that_share_a_key_head(launch, choice, group):
    launch(choice)
    q, k, v = (normal(heads, 45, 32) for heads in (2 * group, 2, 2))
    check(q, k, v, mask=rb.Mask.causal())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steep", [1.0, 40.0, 3000.0])
def test_scores_far_above_the_first_keys(launch, dtype, steep):
    """P overflows if a row's largest score is far above the scores of its first keys; such rows are recomputed."""
    launch(SMALL)
    q, k, v = normal(1, 70, 64, dtype=dtype), normal(1, 200, 64, dtype=dtype), normal(1, 200, 64, dtype=dtype)
    with torch.no_grad():
        k[:, 150:] += steep / 64 * q[:, :1]
    check_forward(q, k, v)


def test_wide_heads_run_by_tma_as_planned(launch, monkeypatch):
    names = launch(None)
    monkeypatch.setattr(gpu, "plan", plan)
    check(*(normal(1, 260, 264) for _ in range(3)), mask=rb.Mask.causal())
    assert names[:4] == ["references", "score_tiles", "row_sums", "redo"]
    assert "key_sums" in names


def test_nan_in_keys_that_no_query_attends(launch):
    launch(SMALL)
    q, k, v = normal(1, 40, 32), normal(1, 100, 32), normal(1, 100, 32)
    k.data[:, 40:], v.data[:, 40:] = torch.nan, torch.nan
    got = interpreted.attention(q, k, v, mask=rb.Mask.causal())
    assert torch.isfinite(got).all()


def test_arrays_of_other_layouts(launch):
    launch(SMALL)
    q, k, v = (normal(2, 45, 3, 32).transpose(1, 2) for _ in range(3))
    check_forward(q, k, v, mask=rb.Mask.causal())


@interpreted_only
def test_the_log_sum_exp_of_single_heads_may_have_any_stride_between_heads(launch):
    launch(SMALL)
    q, k, v, dout = (normal(2, 1, 45, 32).detach() for _ in range(4))
    options = Options(MaskArgument())
    with interpreted.interpreted():
        out, lse = gpu.forward(q, k, v, options)
        strided = torch.empty_strided((2, 1, 45), (45, 90, 1)).copy_(lse)
        results = (gpu.backward(dout, None, q, k, v, out, x, options, False) for x in (lse, strided))
        for x, y in zip(*results, strict=True):
            assert torch.equal(x, y)


# Words -------------------------------------------------------------------------------------------------------------


def words(direction):
    """The words that SMALL moves on a full mask, by kernel, and the closed form of small_cache."""
    sizes = Sizes((1,), 2, 1, N_Q, N_K, D, D_V)
    arrays = {
        name: torch.randn(shape[:-1] if name in SUMS else shape).to(getattr(torch, dtype))
        for name, (shape, dtype) in array_forms(sizes, "bfloat16", "backward").items()
    }
    with counting() as tally:
        for run in getattr(launches, direction)(Task.of(sizes=sizes, **arrays), SMALL):
            run()
    names = ("out",) if direction == "forward" else ("dq", "dk", "dv")
    edges = {f"{name}_{side}": 32 for name in names for side in ("rows", "cols")} | {
        "rows": 32,
        "cols": 64,
        "depth": 32,
    }
    if direction == "backward":
        edges["span"] = 64  # every tile loads the log-sum-exp and delta of its rows
    problem = Problem(N_Q, N_K, D, D_V, 1, heads=2, dtype="float16", direction=direction)
    schedule = schedules.get("small_cache")
    return tally, schedule.cost(problem, schedule.make_tiles(problem, edges))


N_Q, N_K, D, D_V, HEADS = 70, 100, 48, 40, 2


@interpreted_only
def test_backward_moves_the_words_of_its_schedule():
    tally, cost = words("backward")
    assert (tally.total().reads, tally.total().writes) == (cost.reads, cost.writes)


@interpreted_only
def test_forward_moves_the_words_of_its_schedule_and_those_of_the_references():
    tally, cost = words("forward")
    blocks = ceil_div(N_Q, 32)
    first_scores = N_Q * D + blocks * launches.FIRST_KEYS * D
    instead = N_Q * (ceil_div(N_K, 64) + 1) - N_Q * ceil_div(D_V, 32)  # reference scores, where the schedule loads lse
    flags = blocks * ceil_div(D_V, 128)
    assert tally.total().reads == cost.reads + HEADS * (first_scores + instead + flags)
    assert tally.total().writes == cost.writes + HEADS * (N_Q + blocks)


# The compiled kernels ----------------------------------------------------------------------------------------------

COMPILED = """
import json
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.by_tma import Choice
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import candidates

rows = []
for direction in ("forward", "backward"):
    for d, end in (512, 1), (320, None):
        sizes = Sizes((1,), 4, 1, 4096, 4096, d, d)
        for launch in candidates(direction, sizes, "bfloat16", Card(), PlanOptions(by_tma=True)):
            if isinstance(launch.tiles, Choice):
                fits = fit.fits(direction, sizes, "bfloat16", Card(), launch, end=end)
                rows += [(x.kernel, x.shared_bytes, launch.shared_bytes, x.spilled_bytes, x.serialized) for x in fits]
print(json.dumps(rows))
"""


SPILLED_BYTES = 128  # per thread, once per tile


@pytest.mark.thorough
@pytest.mark.nightly
def test_compiled_kernels_hardly_spill_nor_wait_for_each_product():
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILED], env=environment, capture_output=True, text=True, check=True
    )
    rows = json.loads(run.stdout)
    assert {row[0] for row in rows} == {"references", "score_tiles", "row_sums", "redo", "deltas", "key_sums"}
    for kernel, shared, planned, spilled, serialized in rows:
        assert shared <= planned, kernel
        assert spilled <= SPILLED_BYTES, kernel
        assert not serialized, kernel


# The plan ----------------------------------------------------------------------------------------------------------

PLAIN = PlanOptions(by_tma=True)


def planned(direction="forward", d=512, n=8192, dtype="bfloat16", card=None, options=PLAIN, schedule="auto"):
    sizes = Sizes((1,), 32, 1, n, n, d, d)
    return [x.tiles for x in candidates(direction, sizes, dtype, card or Card(), options, schedule)]


def test_wide_heads_are_planned_by_tma_first():
    assert isinstance(planned()[0], Choice)
    assert isinstance(planned("backward")[0], Choice)
    assert not isinstance(planned()[-1], Choice)  # tuning may choose the other kernels


@pytest.mark.parametrize(
    "call",
    [
        {"d": MIN_D["forward"] - 1},
        {"dtype": "float32"},
        {"n": 64},
        {"card": Card(arch=80)},
        {"card": Card(shared_bytes=100 << 10)},
        {"options": PlanOptions()},
        {"schedule": "hybrid"},
    ],
    ids=str,
)
def test_other_calls_are_planned_as_before(call):
    assert not any(isinstance(tiles, Choice) for tiles in planned(**call))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_lengths_of_one_magnitude_share_their_candidates(direction):
    for shorter, other in ((4097, 8192), (33000, 65000)):
        assert planned(direction, n=shorter) == planned(direction, n=other)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("group", [1, 8])
def test_memory_of_p_and_ds_is_limited(direction, group):
    arrays = 1 if direction == "forward" else 2
    for n in (4096, 8192, 16384, 32768, 65536, 300000):
        sizes = Sizes((1,), 4, group, n, n, 512, 512)
        launch = candidates(direction, sizes, "bfloat16", Card(), PLAIN)[0]
        tiles = launch.tiles
        if n <= 65536:
            assert isinstance(tiles, Choice)
        if isinstance(tiles, Choice):
            assert tiles.streams % group == 0
            assert tiles.streams * (tiles.queries or n) * n * 2 * arrays <= 1 << 31
            assert tiles.queries % 512 == 0


def shifted(x):
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


@pytest.mark.parametrize(
    ("name", "change", "taken"),
    [
        ("nothing", lambda call: call, True),
        ("base", lambda call: call | {"q": shifted(call["q"])}, False),
        ("columns", lambda call: call | {"k": call["k"].mT.contiguous().mT}, False),
        ("shared", lambda call: call | {"v": call["v"][:, :1].expand(-1, 2, -1, -1)}, False),
        ("rows", lambda call: call | {"k": torch.zeros(1, 2, 40, 33, dtype=torch.float16)[..., :32]}, False),
        ("window", lambda call: call | {"first": -3}, False),
        ("softcap", lambda call: call | {"softcap": 5.0}, False),
        ("sinks", lambda call: call | {"sinks": torch.zeros(2)}, False),
        ("band", lambda call: call | {"end": 1}, True),
        ("nothing attended", lambda call: call | {"end": -39}, False),
    ],
)
def test_tasks_that_tma_takes(name, change, taken):
    x = torch.zeros(1, 2, 40, 32, dtype=torch.float16)
    call = {"q": x, "k": x, "v": x, "out": x, "lse": torch.zeros(1, 2, 40), "softcap": 0.0, "scale": 1.0}
    task = Task.of(sizes=Sizes((1,), 2, 1, 40, 40, 32, 32), **change(call))
    assert task.by_tma is taken
