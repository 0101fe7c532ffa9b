"""Errors of redblue.attention on PyTorch tensors name the argument and what is allowed."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch.autograd import backward_op, forward_op
from support.op_options import flat_options

pytestmark = pytest.mark.usefixtures("nan_in_new_memory")
X = torch.zeros(2, 4, 5, 8)
REFUSED = {
    "d": ((X, X[..., :7], X), {}, r"head dimension of k \(7\) must equal that of q \(8\)"),
    "keys": ((X, X, X[:, :, :4]), {}, r"v must have as many keys as k \(5\), got 4"),
    "heads": ((X, X[:, :3], X[:, :3]), {}, r"heads of q \(4\) must be a multiple of the heads of k and v \(3\)"),
    "leading": ((X, X[:1].expand(3, -1, -1, -1), X), {}, "leading dimensions must broadcast"),
    "dimensions": ((X, X[0, 0, 0], X), {}, "k must have at least 2 dimensions"),
    "type": ((X, X.double(), X), {}, "q, k, v must be of one type, got float32 and, for k, float64"),
    "integers": ((X.int(), X.int(), X.int()), {}, "q must be of type float64, .*, got int32"),
    "complex": ((X, X, X.to(torch.complex64)), {}, "v must be of type .*, got complex64"),
    "device": ((X, X.to("meta"), X), {}, r"k must be on the device of q \(cpu\), got meta"),
    "sparse": ((X, X, X.to_sparse()), {}, "v must be dense, got a tensor of layout torch.sparse_coo"),
    "array": ((X, X.numpy(), X), {}, "k must be a PyTorch tensor like the others, got ndarray"),
    "wide": ((torch.zeros(1, 1, 2, 4097),) * 3, {}, "must be 1 to 4096 on the CPU, got 4097"),
    "no d": ((X[..., :0],) * 3, {}, "must be at least 1, got 0"),
    "ranks": ((torch.zeros([1] * 12),) * 3, {}, "q may have at most 11 dimensions"),
    "bias": ((X, X, X), {"bias": torch.zeros(4, 5)}, r"bias must broadcast to .* = \(2, 4, 5, 5\), got shape \(4, 5\)"),
    "bias's type": ((X, X, X), {"bias": torch.zeros(5, 5, dtype=torch.int64)}, "bias must be of type bool, .* int64"),
    "bias too wide": ((X, X, X), {"bias": torch.zeros(5, 5).double()}, "bias of type float64 needs float64"),
    "sinks": ((X, X, X), {"sinks": torch.zeros(3)}, r"sinks must have shape \(4,\), one per head of q, got \(3,\)"),
    "sinks' type": ((X, X, X), {"sinks": torch.zeros(4).int()}, "sinks must be of type float64, .*, got int32"),
    "dropout": ((X, X, X), {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    "dropout below": ((X, X, X), {"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    "seed": ((X, X, X), {"dropout": 0.1, "seed": 0.5}, "seed must be a whole number, got 0.5"),
    "scale": ((X, X, X), {"scale": float("nan")}, "scale must be finite, got nan"),
    "softcap": ((X, X, X), {"softcap": 0}, "softcap must be above 0, or None, got 0"),
    "mask": ((X, X, X), {"mask": torch.ones(5, 5)}, "mask must be a redblue.Mask"),
    "schedule": (
        (X, X, X),
        {"schedule": "fast"},
        "schedule must be one of auto, flash, hybrid, small_cache, gather .*, got 'fast'",
    ),
}


@pytest.mark.parametrize(("inputs", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_argument_and_what_is_allowed(inputs, options, message):
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(*inputs, **options)


def test_nested_tensors_are_refused():
    with warnings.catch_warnings():  # PyTorch warns once per process that nested tensors are a prototype
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([X[0], X[1]])
    with pytest.raises(rb.RedblueError, match="q is a nested tensor"):
        rb.attention(nested, X, X)


def test_the_op_itself_never_trusts_its_arguments():
    with pytest.raises(rb.RedblueError, match="takes equal leading dimensions"):
        forward_op(X, X[:1], X, *flat_options())
    out, lse = forward_op(X, X, X, *flat_options())
    with pytest.raises(rb.RedblueError, match="dout must be"):
        backward_op(out[:, :2], None, X, X, X, out, lse, *flat_options(), False)
    with pytest.raises(rb.RedblueError, match="lse must be"):
        backward_op(out, None, X, X, X, out, lse.double(), *flat_options(), False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": torch.ones(3)}, "scale must be a number"),
        ({"scale": 10**400}, "scale must be a number"),
        ({"scale": torch.tensor(0.3, requires_grad=True)}, "scale has no gradient"),
        ({"seed": torch.tensor(1.5), "dropout": 0.5}, "seed must be a whole number"),
        ({"k": None}, "k must be a PyTorch tensor"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(change, message):
    arguments = {name: torch.ones(1, 4, 8) for name in "qkv"} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention(q, k, v, **arguments)
