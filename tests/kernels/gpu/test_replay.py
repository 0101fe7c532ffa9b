"""A replayed call launches the same kernels with the same arguments as a call that plans and binds them again.

In most tests no kernel runs: a stand-in for the compiled kernel records the arguments of each launch.
"""

import gc
import itertools
import weakref
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue.kernels.gpu import launch as gpu_launch
from redblue.kernels.gpu import replay
from redblue.kernels.gpu.arrays import Array
from redblue.kernels.gpu.launch import Run
from redblue.kernels.gpu.planning.card import Card, planning_for
from redblue.kernels.gpu.planning.plan import plan
from redblue.op.pytorch import gpu, interpreted, ops
from redblue.op.pytorch.paged import gpu as paged_gpu
from support import gpu as support_gpu
from support.gpu import interpreted_only
from support.replays import launched

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes masked lanes, too


class Launched(NamedTuple):
    kernel: str
    grid: tuple
    arguments: list


class Compiled:
    """A stand-in for Triton's compiled kernel."""

    def __init__(self, run, log):
        self.name, self.log = run.kernel.__name__, log

    def launch_metadata(self):
        raise AssertionError

    def __getitem__(self, grid):
        return lambda *arguments: self.log.append(Launched(self.name, grid, list(arguments)))


@pytest.fixture
def log(monkeypatch):
    """The launches of each call, in order."""
    launches = []

    def record(run):
        if not all(run.grid):
            return None
        compiled = Compiled(run, launches)
        compiled[(*run.grid, 1, 1)[:3]](*run.positional)
        return compiled

    monkeypatch.setattr(gpu_launch.Run, "__call__", record)
    replay.forget()
    paged_gpu.forget()
    with ops.substituted(by=gpu), planning_for(Card()):
        yield launches
    replay.forget()
    paged_gpu.forget()


def arrays(n_q=256, n_k=256, d=128, heads=4, kv_heads=4, d_v=None, dtype=torch.bfloat16, layout="contiguous"):
    if layout == "packed":
        return torch.randn(1, n_q, 3, heads, d).to(dtype).permute(2, 0, 3, 1, 4).unbind()
    shapes = (heads, n_q, d), (kv_heads, n_k, d), (kv_heads, n_k, d_v or d)
    return [torch.randn(1, *shape).to(dtype) for shape in shapes]


def described(x, tensors, temporaries):
    """An argument, with addresses replaced by the name of the tensor, or the number of the temporary array."""
    if isinstance(x, tuple):
        return tuple(described(y, tensors, temporaries) for y in x)
    if hasattr(x, "base"):
        rest = {name: value for name, value in vars(x).items() if name != "base"}
        return (*described(x.base, tensors, temporaries), repr(rest))
    address = x.data_ptr() if hasattr(x, "data_ptr") else x if type(x) is int and x > 1 << 32 else None
    if address is None:
        return x
    for name, tensor in tensors.items():
        first = tensor.untyped_storage().data_ptr()
        if first <= address < first + tensor.untyped_storage().nbytes():
            return name, address - tensor.data_ptr()
    return "temporary", temporaries.setdefault(address, len(temporaries))


def launched_by(call, log):
    """The launches of a call, described. call: returns the tensors by name."""
    log.clear()
    tensors, temporaries = call(), {}
    return [
        (each.kernel, each.grid, [described(x, tensors, temporaries) for x in each.arguments]) for each in list(log)
    ]


def forward_of(inputs, **options):
    """A call that returns its tensors by name. options that are functions make the values."""

    def call():
        made = {name: x() if callable(x) else x for name, x in options.items()}
        out, lse = rb.attention(*inputs, return_lse=True, **made)
        tensors = {name: x for name, x in made.items() if isinstance(x, torch.Tensor)}
        return dict(zip("qkv", inputs, strict=True)) | {"out": out, "lse": lse} | tensors

    return call


CALLS = {
    "full": ({}, {}),
    "float32": ({"dtype": torch.float32}, {}),
    "decode": ({"n_q": 1, "n_k": 65536, "heads": 8, "kv_heads": 1}, {}),
    "causal": ({}, {"mask": rb.Mask.causal()}),
    "softcap": ({}, {"softcap": 5.0}),
    "wide": ({"d": 512, "heads": 48, "kv_heads": 48}, {}),
    "wide, few": ({"d": 512}, {"mask": rb.Mask.causal()}),
    "late window": (
        {"n_q": 1, "n_k": 5000, "heads": 8, "kv_heads": 2},
        {"mask": rb.Mask.sliding_window(1000, 0, align="bottom-right"), "schedule": "flash"},
    ),
    "odd": ({"n_q": 77, "n_k": 131, "d": 40, "d_v": 24}, {}),
    "packed": ({"layout": "packed"}, {}),
    "hybrid": ({"d": 256}, {"schedule": "hybrid"}),
    "small_cache": ({"d": 96}, {"schedule": "small_cache"}),
    "sinks": ({}, {"sinks": lambda: torch.randn(4), "mask": rb.Mask.causal()}),
    "bias": ({"d": 64}, {"bias": lambda: torch.randn(4, 256, 256)}),
    "boolean bias": ({"d": 96}, {"bias": lambda: torch.randn(1, 1, 256) > 0, "schedule": "small_cache"}),
    "alibi": ({"n_q": 300}, {"alibi": lambda: torch.rand(4)}),
    "dropout": ({}, {"dropout": 0.5, "seed": lambda: next(SEEDS)}),
}
SEEDS = itertools.count()


@pytest.mark.parametrize(("sizes", "options"), CALLS.values(), ids=CALLS)
def test_a_replay_launches_the_same_as_a_new_call(sizes, options, log):
    first, second = arrays(**sizes), arrays(**sizes)
    for x, y in zip(first, second, strict=True):  # whether addresses are multiples of 16 is part of the key
        assert x.data_ptr() % 16 == y.data_ptr() % 16
    planned = launched_by(forward_of(first, **options), log)
    assert planned
    assert len(replay._kept) == 1
    assert launched_by(forward_of(second, **options), log) == planned
    replay.forget()
    assert launched_by(forward_of(second, **options), log) == planned


@interpreted_only
@pytest.mark.usefixtures("bfloat16_to_nearest")
@pytest.mark.parametrize("schedule", ["flash", "hybrid", "small_cache"])
@pytest.mark.parametrize("mask", [None, rb.Mask.causal()], ids=str)
def test_replays_give_right_values(schedule, mask, monkeypatch):
    monkeypatch.setattr(gpu_launch.Run, "__call__", launched)
    monkeypatch.setattr(gpu, "plan", lambda *request: plan(*request[:-1], schedule))
    for _ in range(2):
        q, k, v = support_gpu.normal(2, 3, 20, 9), support_gpu.normal(2, 1, 20, 9), support_gpu.normal(2, 1, 20, 5)
        support_gpu.check(q, k, v, mask=mask)
        assert len(replay._kept) == 2
    replay.forget()
    for seed in range(2):
        q, k, v = support_gpu.normal(2, 3, 20, 9), support_gpu.normal(2, 1, 20, 9), support_gpu.normal(2, 1, 20, 5)
        sinks, alibi = support_gpu.normal(3), torch.rand(2, 3, dtype=torch.float64)
        support_gpu.check(q, k, v, sinks, mask=mask, sinks=sinks, alibi=alibi)
        support_gpu.check_forward(q, k, v, mask=mask, dropout=0.5, seed=seed)
        assert len(replay._kept) == 3


@interpreted_only
@pytest.mark.usefixtures("bfloat16_to_nearest")
def test_replays_by_tma_give_right_values(monkeypatch):
    monkeypatch.setattr(gpu_launch.Run, "__call__", launched)
    with planning_for(Card()):
        for number in range(1, 3):
            support_gpu.check_forward(*(number * torch.randn(1, 260, 264).to(torch.bfloat16) for _ in range(3)))
            assert len(replay._kept) == 1


@interpreted_only
def test_replays_on_pages_give_right_values(monkeypatch):
    monkeypatch.setattr(gpu_launch.Run, "__call__", launched)
    lengths, table = [40, 0, 3000], torch.randperm(3 * 188).view(3, 188)
    for _ in range(2):
        q, keys, values = torch.randn(3, 1, 4, 8), *torch.randn(2, 3 * 188, 16, 2, 8)
        with interpreted.interpreted():
            out = rb.attention_paged(q, keys, values, table, lengths)
        torch.testing.assert_close(out, rb.attention_paged(q, keys, values, table, lengths))
        assert len(paged_gpu.replays.kept) == 1


@pytest.mark.parametrize("sizes", [{}, {"d": 512, "heads": 48, "kv_heads": 48}, {"d": 96, "n_q": 77}], ids=str)
def test_backward(sizes, log):
    def call(inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = rb.attention(*leaves)
        log.clear()
        dout = torch.ones_like(out)
        gradients = torch.autograd.grad(out, leaves, dout)
        names = "q", "k", "v", "out", "dout", "dq", "dk", "dv"
        return dict(zip(names, (*inputs, out, dout, *gradients), strict=True))

    first, second = arrays(**sizes), arrays(**sizes)
    planned = launched_by(lambda: call(first), log)
    assert len(replay._kept) == 2
    assert launched_by(lambda: call(second), log) == planned


def test_only_equal_calls_are_replayed(log, monkeypatch):
    q, k, v = arrays()
    forward_of((q, k, v))()
    assert len(replay._kept) == 1
    others = [
        ((q, k, k), {}),  # shared memory
        ((q.transpose(1, 2).contiguous().transpose(1, 2), k, v), {}),
        ((torch.nn.functional.pad(q, (8, 0))[..., 8:], k, v), {}),
        ((q, k, v), {"scale": 0.3}),
        ((q, k, v), {"mask": rb.Mask.causal()}),
        *(((q, k, v), {"mask": rb.Mask.sliding_window(left, right)}) for left, right in ((9, 0), (8, 0), (8, 1))),
        *(((q, k, v), {"softcap": softcap}) for softcap in (5.0, 6.0)),
        *(((q, k, v), {"dropout": dropout, "seed": 1}) for dropout in (0.1, 0.2)),
        *(((q, k, v), {"sinks": torch.zeros(4), "schedule": schedule}) for schedule in ("flash", "hybrid")),
        ((q.float(), k.float(), v.float()), {}),
    ]
    for number, (inputs, options) in enumerate(others, 2):
        forward_of(inputs, **options)()
        assert len(replay._kept) == number
    unaligned = torch.randn(q.numel() + 1).to(q.dtype)[1:].view(q.shape)
    forward_of((unaligned, k, v))()
    assert len(replay._kept) == len(others) + 2
    with planning_for(Card(shared_bytes=48 << 10)):
        forward_of((q, k, v))()
    assert len(replay._kept) == len(others) + 3
    torch.use_deterministic_algorithms(True)
    forward_of((q, k, v))()
    torch.use_deterministic_algorithms(False)
    assert len(replay._kept) == len(others) + 4
    monkeypatch.setattr(gpu, "precision_of", lambda _: "tf32")
    forward_of((q, k, v))()
    assert len(replay._kept) == len(others) + 5
    monkeypatch.setattr(gpu, "capturing", lambda _: True)
    assert gpu._replay_key("forward", {"q": q}, gpu.Options()) is None


def test_calls_that_do_more_than_launch_are_not_kept(log):
    q, k, v = arrays(n_q=100, n_k=200)
    for options in (
        {"mask": rb.Mask.causal()},  # keys that no query attends: their gradients are cleared
        {"mask": rb.Mask.sliding_window(10, 0, align="bottom-right")},
        {"mask": rb.Mask.blocks([[True, False], [True, True]], (50, 100))},
    ):
        forward_of((q, k, v), **options)()
        assert not replay._kept


def test_paged(log):
    def call(seed, lengths=(100, 37)):
        torch.manual_seed(seed)
        q = torch.randn(2, 1, 8, 64).half()
        k, v = torch.randn(2, 9, 16, 2, 64).half()
        table = torch.tensor([[1, 3, 5, 7, 2, 4, 6], [8, 0, 1, 0, 0, 0, 0]])
        log.clear()
        out = rb.attention_paged(q, k, v, table, torch.tensor(lengths))
        return {"q": q, "k": k, "v": v, "out": out}

    def without_layout(launches):  # addresses of the layout's arrays, which are new after forget()
        return [
            (name, grid, [x for x in arguments if not (isinstance(x, tuple) and x[0] == "temporary")])
            for name, grid, arguments in launches
        ]

    planned = launched_by(lambda: call(0), log)
    assert [name for name, *_ in planned][-1] == "paged_forward"
    assert len(paged_gpu.replays.kept) == 1
    replayed = launched_by(lambda: call(1), log)
    assert without_layout(replayed) == without_layout(planned)
    launched_by(lambda: call(1, lengths=(100, 38)), log)
    assert len(paged_gpu.replays.kept) == 2
    paged_gpu.forget()
    assert without_layout(launched_by(lambda: call(1), log)) == without_layout(planned)


class Kernel:
    """A kernel with one argument."""

    arg_names = ("x",)
    __name__ = "kernel"


def test_views_temporary_memory_and_kept_arrays():
    a, kept = torch.zeros(100), torch.zeros(3)
    temporary = torch.zeros(50)
    log = []
    values = a[10:], Array(temporary[4:], 1, 2, 3, 4), kept, temporary, None, 7
    launched = [(run := Run(Kernel, (1,), {"x": x}, 4, 1), Compiled(run, log)) for x in values]
    made = replay.recorded(launched, [a], [kept])
    assert made is not None
    assert made.memory == (200,)
    other = torch.zeros(100)
    made.run([other])
    view, array, same, whole, *rest = (each.arguments[0] for each in log)
    assert view == other.data_ptr() + 40
    assert same is kept
    assert array == (whole + 16, 1, 2, 3, 4)
    assert rest == [None, 7]


def test_arguments_of_unknown_origin_are_not_replayed():
    a = torch.zeros(100)
    launched = [(run := Run(Kernel, (1,), {"x": (1, (torch.zeros(2), (1, 3)))}, 4, 1), Compiled(run, []))]
    assert replay.recorded(launched, [a]) is None  # nothing shows whether the array is temporary
    both = a[:50], a[50:]
    launched = [(run := Run(Kernel, (1,), {"x": a[20:30]}, 4, 1), Compiled(run, []))]
    assert replay.recorded(launched, both) is None  # which of the two is it?
    overlapping = a[:60], a[30:90]  # the second half of the first one begins where the second one begins
    launched = [(run := Run(Kernel, (1,), {"x": a[30:60]}, 4, 1), Compiled(run, []))]
    assert replay.recorded(launched, overlapping) is None
    for x in (a[2:], (a, 1)):  # parts of a kept array, and kept arrays in tuples
        launched = [(run := Run(Kernel, (1,), {"x": x}, 4, 1), Compiled(run, []))]
        assert replay.recorded(launched, [torch.zeros(3)], [a]) is None
    interpreted = [(Run(Kernel, (1,), {"x": a}, 4, 1), None)]
    assert replay.recorded(interpreted, [a]) is None


@pytest.mark.parametrize("sizes", [{"heads": 48, "kv_heads": 48, "d": 512}, {"d": 64}], ids=["by TMA", "with options"])
def test_replays_hold_no_tensors(sizes, log):
    inputs = arrays(**sizes)
    options = {} if sizes["d"] > 64 else {"bias": torch.zeros(1, 4, 256, 256), "sinks": torch.zeros(4)}
    call = forward_of(inputs, **options)
    call()
    assert len(replay._kept) == 1
    references = [weakref.ref(x) for x in (*inputs, *options.values())]
    log.clear()
    del inputs, options, call
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_a_replay_that_finds_too_little_memory_is_planned_again(log, monkeypatch):
    call = forward_of(arrays())
    call()
    log.clear()

    def fail(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    (known,) = replay._kept.values()
    assert known.memory
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "new_empty", fail)
        assert not known.run(arrays())
    assert not log
    monkeypatch.setattr(replay.Replay, "run", lambda *_: False)
    call()
    assert log


def test_a_paged_call_cannot_be_captured(log, monkeypatch):
    monkeypatch.setattr(paged_gpu, "capturing", lambda _: True)
    q, (k, v) = torch.randn(1, 1, 2, 16), torch.randn(2, 3, 16, 2, 16)
    with pytest.raises(rb.RedblueError, match="a CUDA graph cannot capture it"):
        rb.attention_paged(q, k, v, torch.tensor([[0, 2]]), [20])


def test_the_cache_is_bounded(log, monkeypatch):
    monkeypatch.setattr(replay, "KEPT", 2)
    for n in (64, 65, 66):
        forward_of(arrays(n_q=n, n_k=n))()
        assert len(replay._kept) <= 2
