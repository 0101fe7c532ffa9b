"""The calls that the Hopper kernel supports, and its use by the operator."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon.nvidia.hopper")

import redblue as rb
from redblue.kernels.gpu.hopper import forward as hopper
from redblue.kernels.gpu.launch import PlanOptions, Run, Task
from redblue.kernels.gpu.planning import fallback
from redblue.kernels.gpu.planning import hopper as planning_hopper
from redblue.kernels.gpu.planning.by_gluon import MIN_ROWS, Settings, choices, settings
from redblue.kernels.gpu.planning.card import Card, planning_for
from redblue.kernels.gpu.planning.plan import _for_hopper, candidates
from redblue.kernels.sizes import Sizes
from support.gluon_model import kernel_source, run_kernel
from support.gpu import check_forward, interpreted_only

pytestmark = interpreted_only
SOURCE = kernel_source(Path(hopper.__file__).with_name("forward_kernel.py"))
PLAIN = PlanOptions(by_gluon="full")


@pytest.fixture
def gluon(monkeypatch):
    """Plan as if kernels were compiled by a Triton that has Gluon."""
    monkeypatch.setattr(planning_hopper, "available", lambda: True)
    _for_hopper.cache_clear()
    yield
    _for_hopper.cache_clear()


@pytest.fixture
def modelled(gluon, monkeypatch):
    """Run the kernel's source by the model. Returns a list to which each run appends its settings."""
    ran = []

    class Modelled(Run):
        def __call__(self):
            run_kernel(SOURCE, "hopper_forward", self.grid[0], self.arguments)

    def forward_run(task, chosen):
        ran.append(chosen)
        return Modelled(*real(task, chosen))

    real = hopper.forward_run
    monkeypatch.setattr(hopper, "forward_run", forward_run)
    fallback.forget()
    with planning_for(Card(multiprocessors=3)):
        yield ran


def normal(*shape):
    return torch.randn(shape, dtype=torch.bfloat16)


def planned(
    direction="forward", d=128, d_v=None, n_q=4096, dtype="bfloat16", card=None, options=PLAIN, schedule="auto"
):
    sizes = Sizes((1,), 8, 2, n_q, 4096, d, d_v or d)
    return [x.tiles for x in candidates(direction, sizes, dtype, card or Card(), options, schedule)]


@pytest.mark.parametrize("call", [{}, {"d": 72}, {"d": 192, "d_v": 128}, {"schedule": "flash"}], ids=str)
def test_the_kernel_is_planned_first_and_tuning_may_find_others_faster(gluon, call):
    tiles = planned(**call)
    assert isinstance(tiles[0], Settings)
    assert not isinstance(tiles[-1], Settings)


@pytest.mark.parametrize(
    "call",
    [
        {"d": 257},
        {"d": 64, "d_v": 512},
        {"dtype": "float32"},
        {"n_q": MIN_ROWS - 1},
        {"n_q": 512},  # 4 blocks of 16 heads
        {"card": Card(arch=80)},
        {"card": Card(arch=100)},
        {"card": Card(shared_bytes=150 << 10)},
        {"options": PlanOptions()},
        {"schedule": "hybrid"},
        {"direction": "backward"},
    ],
    ids=str,
)
def test_other_calls_are_planned_as_before(gluon, call):
    assert not any(isinstance(tiles, Settings) for tiles in planned(**call))


def test_kernels_in_gluon_are_not_interpreted():
    assert not planning_hopper.available()
    assert not isinstance(planned()[0], Settings)


@pytest.mark.parametrize(("d", "d_v"), [(64, 64), (40, 64), (128, 128), (64, 128), (192, 128), (256, 256)])
def test_planned_shared_memory_fits(gluon, d, d_v):
    sizes = Sizes((4,), 32, 1, 4096, 4096, d, d_v)
    for mask in ("full", "band"):
        assert choices("forward", sizes, "float16", Card(), mask) == settings(d, d_v, mask)  # all choices fit
        assert all(x.shared_bytes(d, d_v) <= Card().shared_bytes for x in settings(d, d_v, mask))


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, "full"),
        ({"first": -3, "end": 2}, "band"),
        ({"end": -39}, "band"),
        ({"softcap": 5.0}, ""),
        ({"scale": -1.0}, ""),
        ({"sinks": torch.zeros(2)}, ""),
        ({"k": torch.zeros(1, 2, 40, 36, dtype=torch.float16)[..., :32]}, ""),
        ({"q": torch.zeros(2561, dtype=torch.float16)[1:].view(1, 2, 40, 32)}, ""),
        ({"v": torch.zeros(1, 1, 40, 32, dtype=torch.float16).expand(1, 2, 40, 32)}, ""),
    ],
)
def test_tasks_that_the_kernel_takes(change, taken):
    x = torch.zeros(1, 2, 40, 32, dtype=torch.float16)
    call = {"q": x, "k": x, "v": x, "out": x, "lse": torch.zeros(1, 2, 40), "softcap": 0.0, "scale": 1.0}
    assert Task.of(sizes=Sizes((1,), 2, 1, 40, 40, 32, 32), **call | change).plan_options.by_gluon == taken


@pytest.mark.parametrize(
    ("mask", "heads", "n_q", "n_k"),
    [
        (rb.Mask.full(), (2, 2), 150, 130),
        (rb.Mask.causal(), (4, 2), 200, 230),
        (rb.Mask.causal(align="bottom-right"), (2, 2), 200, 150),  # the first queries attend nothing
        (rb.Mask.sliding_window(50, 3), (2, 1), 190, 190),
    ],
    ids=str,
)
def test_the_operator_runs_the_kernel(modelled, mask, heads, n_q, n_k):
    q, k, v = normal(2, heads[0], n_q, 64), normal(2, heads[1], n_k, 64), normal(2, heads[1], n_k, 64)
    check_forward(q, k, v, mask=mask)
    assert len(modelled) == 1


def test_heads_beside_each_other_in_memory(modelled):
    check_forward(*(normal(1, 140, 3, 72).transpose(1, 2) for _ in range(3)), mask=rb.Mask.causal())
    assert len(modelled) == 1


def test_calls_it_does_not_take_run_the_triton_kernel(modelled):
    q, k, v = (normal(1, 2, 140, 64) for _ in range(3))
    check_forward(q, k, v, softcap=20.0)
    check_forward(q, k, v, mask=rb.Mask.documents([40, 60, 40]))
    check_forward(q[..., 3:], k[..., 3:], v)
    assert not modelled


def test_if_triton_cannot_compile_the_kernel_another_runs_with_a_warning(gluon, monkeypatch):
    def refuse(task, chosen):
        raise triton.compiler.errors.CompilationError("source", None, "no such operation")

    monkeypatch.setattr(hopper, "forward_run", refuse)
    fallback.forget()
    q, k, v = (normal(1, 2, 140, 64) for _ in range(3))
    with (
        planning_for(Card(multiprocessors=3)),
        pytest.warns(UserWarning, match="does not compile.*flash .* runs instead"),
    ):
        check_forward(q, k, v)
    with planning_for(Card(multiprocessors=3)):
        check_forward(q, k, v)  # without a second warning, which would fail the test
    fallback.forget()


def test_sections_of_heads_fit_the_cache():
    q = normal(1, 8, 256, 64)
    arguments = hopper.prepare(
        q, q, q, torch.empty_like(q), torch.empty(1, 8, 256), 1.0, None, 1, Settings(l2_bytes=4 * q[:, 0].nbytes * 2)
    ).arguments
    assert arguments["section"] == 2  # with two heads, keys and values take half of it
