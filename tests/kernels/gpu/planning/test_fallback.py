"""Launches that a card refuses, because they need too much memory, are replaced by smaller ones.

Interpreted kernels refuse nothing, so the tests raise Triton's errors in their place.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import fallback, tune
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch, launches, plan
from redblue.kernels.sizes import Sizes
from redblue.op.pytorch import gpu, interpreted
from redblue.schedules.flash import ForwardTiles

CARD_BYTES = 10_000
SIZES = Sizes((1,), 2, 1, 150, 150, 48, 48)
KIND = tune.Kind.of("forward", SIZES, "float16", "full", PlanOptions(), "auto", torch.device("cpu"), Card())


@pytest.fixture(autouse=True)
def no_known_refusals():
    fallback.forget()
    yield
    fallback.forget()


@pytest.fixture
def refuse_above(monkeypatch):
    """Return a function that makes the card refuse launches planned for more than max_bytes.

    That function returns a list of the launches tried, which grows with each one.
    """
    tried = []

    def refuse_above(max_bytes, error=None):
        for name, passes in list(gpu.KERNELS.items()):
            limited = {direction: limit(getattr(passes, direction), max_bytes, error) for direction in passes._fields}
            monkeypatch.setitem(gpu.KERNELS, name, passes._replace(**limited))
        return tried

    def limit(runs, max_bytes, error):
        def runs_if_it_fits(task, launch, precision="ieee"):
            tried.append(launch)
            if launch.shared_bytes > max_bytes:
                raise error or triton.OutOfResources(launch.shared_bytes + 5000, CARD_BYTES, "shared memory")
            return runs(task, launch, precision)

        return runs_if_it_fits

    return refuse_above


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 150, 48, generator=generator, requires_grad=True) for _ in range(3)]


def test_a_refused_launch_is_replaced_with_one_warning_and_not_tried_again():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150), shared_bytes=2000 >> i) for i in range(3)]
    tried = []

    def execute(launch):
        tried.append(launch)
        if launch == launches[0]:
            raise triton.OutOfResources(12_000, CARD_BYTES, "shared memory")

    message = (
        f"it needs 12,000 bytes of shared memory, and a block on this card has {CARD_BYTES:,}; flash .* runs instead"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        fallback.run(KIND, lambda: launches[0], lambda: launches, execute)
    assert len(caught) == 1
    tried.clear()
    fallback.run(KIND, lambda: launches[0], lambda: launches, execute)  # no second warning: it would fail the test
    assert tried == launches[1:2]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("PassManager::run failed"), "does not compile"),
        (torch.OutOfMemoryError("no memory left"), "finds too little memory: no memory left"),
    ],
    ids=["pass", "memory"],
)
def test_a_launch_that_fails_in_another_way_is_replaced(error, said):
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150), shared_bytes=2000) for i in range(2)]

    ran = []

    def execute(launch):
        if launch == launches[0]:
            raise error
        ran.append(launch)

    with pytest.warns(UserWarning, match=said):
        fallback.run(KIND, lambda: launches[0], lambda: launches, execute)
    assert ran == launches[1:]


def test_if_memory_runs_out_for_every_launch_its_error_is_raised():
    def execute(launch):
        raise torch.OutOfMemoryError("no memory left")

    launches = [Launch("flash", ForwardTiles(16, 16, 150))]
    with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
        fallback.run(KIND, lambda: launches[0], lambda: launches, execute)


@pytest.mark.thorough
def test_a_refused_call_is_replaced_with_one_warning_and_not_tried_again(refuse_above):
    tried = refuse_above(CARD_BYTES)
    arrays = tensors()
    with pytest.warns(UserWarning, match="forward, with d = .* runs instead") as caught:
        out = interpreted.attention(*arrays)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="backward, with d = .* runs instead") as caught_backward:
        gradients = torch.autograd.grad(out.sum(), arrays)
    assert len(caught_backward) == 1
    first = tried[0]
    message = (
        f"it needs {first.shared_bytes + 5000:,} bytes of shared memory, and a block on this card has {CARD_BYTES:,}; "
    )
    assert message in str(caught[0].message)
    assert first == plan("forward", SIZES, "float32", Card())
    assert tried[-1].shared_bytes <= CARD_BYTES < first.shared_bytes
    accepted = [launch for launch in tried if launch.shared_bytes <= CARD_BYTES]
    tried.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = interpreted.attention(*arrays)
        torch.autograd.grad(again.sum(), arrays)
    assert tried == accepted
    expected = rb.attention(*arrays)
    for ours, reference in zip(
        (out, *gradients), (expected, *torch.autograd.grad(expected.sum(), arrays)), strict=True
    ):
        torch.testing.assert_close(ours, reference, atol=2e-5, rtol=2e-5)
    assert torch.equal(out, again)


def test_if_every_launch_is_refused_the_error_names_the_least_memory_needed(refuse_above):
    tried = refuse_above(0)
    with pytest.raises(
        rb.RedblueError, match=f"a block on this card has {CARD_BYTES:,}; every other planned"
    ) as caught:
        interpreted.attention(*tensors())
    least = min(tried, key=lambda launch: launch.shared_bytes)
    assert f"it needs {least.shared_bytes + 5000:,} bytes" in str(caught.value)
    assert {launch.kernel for launch in tried} > {"flash"}


def test_other_errors_are_raised(refuse_above):
    tried = refuse_above(0, ZeroDivisionError("a mistake"))
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


def test_a_tuned_launch_that_is_not_among_the_plans_may_be_refused(monkeypatch):
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150), shared_bytes=2000 << i) for i in range(3)]
    ran = []

    def execute(launch):
        if launch == launches[2]:
            raise triton.OutOfResources(600, 512, "tensor memory")
        ran.append(launch)

    with pytest.warns(UserWarning, match="600 columns of tensor memory"):
        fallback.run(KIND, lambda: launches[2], lambda: launches, execute)
    fallback.run(KIND, lambda: launches[2], lambda: launches, execute)  # no second warning: it would fail the test
    assert ran == launches[:1] * 2


def test_a_tuned_launch_runs_again_when_there_is_memory_again():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150)) for i in range(3)]
    tried = []

    def execute(launch):
        tried.append(launch)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("no memory left")

    with pytest.warns(UserWarning, match="no memory left; flash .* runs instead"):
        fallback.run(KIND, lambda: launches[2], lambda: launches, execute)
    for _ in range(2):
        fallback.run(KIND, lambda: launches[2], lambda: launches, execute)
    assert tried == [launches[2], launches[0], launches[2], launches[2]]


def test_a_choice_among_refused_launches_is_not_made_again():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150)) for i in range(2)]
    chosen, ran = [], []

    def choose():
        chosen.append(None)
        raise triton.OutOfResources(600, 512, "tensor memory")

    for _ in range(2):
        fallback.run(KIND, choose, lambda: launches, ran.append)
    assert len(chosen) == 1
    assert ran == launches[:1] * 2


def test_a_choice_that_found_too_little_memory_is_made_again():
    launches = [Launch("flash", ForwardTiles(16 << i, 16, 150)) for i in range(2)]
    chosen, ran = [], []

    def choose():
        chosen.append(None)
        if len(chosen) == 1:
            raise torch.OutOfMemoryError("no memory left")
        return launches[1]

    for _ in range(2):
        fallback.run(KIND, choose, lambda: launches, ran.append)
    assert ran == launches


def test_launches_shrink_down_to_the_smallest_tiles():
    every = list(launches("forward", SIZES, "float16", Card(arch=80)))
    needed = [launch.shared_bytes for launch in every]
    assert {"flash", "small_cache"} <= {launch.kernel for launch in every}
    assert min(needed) < 4096 < needed[0]
    assert needed.index(min(needed)) == len(every) - 1
    assert len(every) < 30
