"""Reference attention on PyTorch tensors in float64, and checks against it."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import redblue as rb

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normal(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def textbook(q, k, v, mask=None, *, scale=None, bias=None, softcap=None, sinks=None, alibi=None, return_lse=False):
    """Compute attention in float64, with all intermediate arrays in memory."""
    q, k, v = (x.double() for x in (q, k, v))
    if q.dim() > 2 and max(k.shape[-3], v.shape[-3]) > 1:
        k, v = (x.expand(*x.shape[:-3], max(k.shape[-3], v.shape[-3]), *x.shape[-2:]) for x in (k, v))
        if q.shape[-3] > 1:
            k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * (s / softcap).tanh()
    if alibi is not None:
        n_q, n_k = s.shape[-2:]
        distance = (torch.arange(n_q, device=s.device)[:, None] + n_k - n_q - torch.arange(n_k, device=s.device)).abs()
        s = s - alibi.double()[..., None, None] * distance
    if bias is not None:
        s = s.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else s + bias.double()
    if mask is not None:
        s = s.masked_fill(~torch.from_numpy(mask.to_dense(*s.shape[-2:])).to(s.device), -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(*s.shape[:-1], 1)], -1)
    dead = (s == -torch.inf).all(-1, keepdim=True)
    p = s.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)
    out = (p[..., :-1] if sinks is not None else p) @ v
    lse = s.masked_fill(dead, 0).logsumexp(-1).masked_fill(dead[..., 0], -torch.inf)
    return (out, lse) if return_lse else out


def check_close(got, expected, dtype=None, tolerance=TOLERANCE):
    """Check the largest error against the type's tolerance, relative to the largest expected number or 1."""
    assert got.shape == expected.shape
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite])
    error = (got - expected)[finite].abs().max() if finite.any() else 0.0
    size = max(1.0, float(expected[finite].abs().max())) if finite.any() else 1.0
    assert error <= tolerance[dtype or torch.float64] * size, f"error {float(error):.2e} of {size:.2e}"


def check(q, k, v, *more, lse_too=True, **options):
    """Check outputs and gradients of q, k, v and `more` (options with gradients) against float64."""
    dtype = q.dtype
    inputs = [x for x in (q, k, v, *more) if x.requires_grad]
    got = rb.attention(q, k, v, **options, return_lse=True)
    expected = textbook(q, k, v, **options, return_lse=True)
    assert got[0].dtype == dtype
    assert got[1].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    used = 2 if lse_too else 1
    douts = [torch.randn_like(x) for x in got[:used]]
    for x, y in zip(got, expected, strict=True):
        check_close(x, y, dtype)
    gradients = torch.autograd.grad(got[:used], inputs, douts)
    references = torch.autograd.grad(expected[:used], inputs, [x.double() for x in douts])
    for x, y, z in zip(gradients, references, inputs, strict=True):
        assert x.dtype == z.dtype
        check_close(x, y, dtype)


class OpRecorder(TorchDispatchMode):
    """Record the names of the ops that reach a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    @property
    def ours(self):
        return "redblue::attention" in self.names
