"""Replacements for planned launches that a card refuses; the kernels raise Triton's errors, interpreted."""

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import fallback, tune
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch, launches, plan
from redblue.op.pytorch import (
    gpu,
    interpreted,
)
from redblue.schedules.flash import ForwardTiles

HAVE = 10_000
SIZES = gpu.Sizes((1,), 2, 1, 150, 150, 48, 48)
KIND = tune.Kind.of("forward", SIZES, "float16", "full", PlanOptions(), "auto", torch.device("cpu"), Card())


@pytest.fixture(autouse=True)
def nothing_refused():
    fallback.forget()
    yield
    fallback.forget()


@pytest.fixture
def refusing(monkeypatch):
    """Refuse launches that are planned for more than `most` bytes; return the launches tried, in order."""
    tried = []

    def refusing(most, error=None):
        for name, own in list(gpu.KERNELS.items()):
            passes = {way: guarded(getattr(own, way), most, error) for way in own._fields}
            monkeypatch.setitem(gpu.KERNELS, name, own._replace(**passes))
        return tried

    def guarded(runs, most, error):
        def runs_if_it_fits(task, launch, precision="ieee"):
            tried.append(launch)
            if launch.shared_bytes > most:
                raise error or triton.OutOfResources(launch.shared_bytes + 5000, HAVE, "shared memory")
            return runs(task, launch, precision)

        return runs_if_it_fits

    return refusing


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 150, 48, generator=generator, requires_grad=True) for _ in range(3)]


def test_a_refused_launch_is_replaced_with_one_warning_and_not_tried_again():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150), shared_bytes=2000 >> i) for i in range(3)]
    tried = []

    def execute(launch):
        tried.append(launch)
        if launch == launches[0]:
            raise triton.OutOfResources(12_000, HAVE, "shared memory")

    need = f"it needs 12,000 bytes of shared memory, and a block on this card has {HAVE:,}; flash .* runs instead"
    with pytest.warns(UserWarning, match=need) as caught:
        fallback.run(KIND, lambda: launches[0], lambda: launches, execute)
    assert len(caught) == 1
    tried.clear()
    fallback.run(KIND, lambda: launches[0], lambda: launches, execute)  # a warning would be an error
    assert tried == launches[1:2]


@pytest.mark.thorough
def test_a_refused_call_is_replaced_with_one_warning_and_not_tried_again(refusing):
    tried = refusing(HAVE)
    arrays = tensors()
    with pytest.warns(UserWarning, match="forward, with d = .* runs instead") as caught:
        out = interpreted.attention(*arrays)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="backward, with d = .* runs instead") as also:
        gradients = torch.autograd.grad(out.sum(), arrays)
    assert len(also) == 1
    first = tried[0]
    need = f"it needs {first.shared_bytes + 5000:,} bytes of shared memory, and a block on this card has {HAVE:,}; "
    assert need in str(caught[0].message)
    assert first == plan("forward", SIZES, "float32", Card())
    assert tried[-1].shared_bytes <= HAVE < first.shared_bytes
    ran = [launch for launch in tried if launch.shared_bytes <= HAVE]
    tried.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = interpreted.attention(*arrays)
        torch.autograd.grad(again.sum(), arrays)
    assert tried == ran
    expected = rb.attention(*arrays)
    for ours, right in zip((out, *gradients), (expected, *torch.autograd.grad(expected.sum(), arrays)), strict=True):
        torch.testing.assert_close(ours, right, atol=2e-5, rtol=2e-5)
    assert torch.equal(out, again)


def test_where_everything_is_refused_the_error_says_what_the_smallest_needs(refusing):
    tried = refusing(0)
    with pytest.raises(rb.RedblueError, match=f"a block on this card has {HAVE:,}; nor does any larger") as caught:
        interpreted.attention(*tensors())
    least = min(tried, key=lambda launch: launch.shared_bytes)
    assert f"it needs {least.shared_bytes + 5000:,} bytes" in str(caught.value)
    assert {launch.kernel for launch in tried} > {"flash"}


def test_other_errors_are_raised(refusing):
    tried = refusing(0, ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        interpreted.attention(*tensors())
    assert len(tried) == 1


def test_other_errors_of_the_replacement_are_raised():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150)) for i in range(2)]
    errors = {
        launches[0]: triton.OutOfResources(600, 512, "tensor memory"),
        launches[1]: ZeroDivisionError("a mistake"),
    }

    def execute(launch):
        raise errors[launch]

    with pytest.raises(ZeroDivisionError):
        fallback.run(KIND, lambda: launches[0], lambda: launches, execute)


def test_a_choice_that_was_tuned_elsewhere_may_be_refused(monkeypatch):
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150), shared_bytes=2000 << i) for i in range(3)]
    ran = []

    def execute(launch):
        if launch == launches[2]:
            raise triton.OutOfResources(600, 512, "tensor memory")
        ran.append(launch)

    for _ in range(2):
        fallback.run(KIND, lambda: launches[2], lambda: launches, execute)
    assert ran == launches[:1] * 2


def test_launches_shrink_to_nothing():
    every = list(launches("forward", SIZES, "float16", Card(arch=80)))
    needs = [launch.shared_bytes for launch in every]
    least = list(itertools.accumulate(needs, min))
    start = needs.index(least[-1])
    assert {"flash", "small_cache"} <= {launch.kernel for launch in every}
    assert least[-1] < 4096 < needs[0]
    assert start == len(every) - 1
    assert len(every) < 30
