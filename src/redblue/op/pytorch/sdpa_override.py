"""An override that sends F.scaled_dot_product_attention of unmodified PyTorch models through redblue.

The override is registered in PyTorch's dispatcher, at aten::scaled_dot_product_attention for tensors on the CPU and on
GPUs. So it serves every caller of this function, under any name, in every thread. It acts before PyTorch chooses one of
its own kernels; on a GPU, only PyTorch's slow kernels support masks or head dimensions above 256. PyTorch itself
computes the calls that redblue does not support, all calls while the user has chosen among PyTorch's kernels
(torch.nn.attention.sdpa_kernel, torch.backends.cuda.enable_flash_sdp and the like), and calls on other devices. A
compiled function keeps the state of the override and the choice of kernels at the time of its compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from redblue.base.errors import RedblueError
from redblue.op.pytorch.overrides import Kernels, Override, register
from redblue.op.pytorch.usage import Usage
from redblue.op.scaled_dot_product import scaled_dot_product_attention

CHOSEN = "torch.nn.attention.sdpa_kernel or torch.backends.cuda chose among PyTorch's kernels"
TRANSFORMED = "the call is inside a transform of torch.func, such as vmap or grad"


def enable_sdpa() -> Override:
    """Send every F.scaled_dot_product_attention through redblue, until the returned Override is disabled.

    This works on the CPU and, if Triton is installed, on CUDA and ROCm devices. PyTorch computes the calls that redblue
    does not support, and all calls inside a torch.nn.attention.sdpa_kernel, whether it was entered before or after the
    override. `used` of the Override counts these calls. The fast path of nn.MultiheadAttention and
    nn.TransformerEncoder is turned off, so that they call the function in eval mode, too. Raises RedblueError if
    PyTorch is not installed.
    """
    return _kernels.request()


@contextmanager
def sdpa() -> Iterator[Usage]:
    """A context in which enable_sdpa is in force, in all threads. Contexts may nest.

    Yields the record of the calls that were served and refused, with the reasons; it stays readable after the block.
    Raises RedblueError if PyTorch is not installed.
    """
    with _kernels.requested() as used:
        yield used


# Both dispatch keys of a device: a tensor has the second key except in inference mode. ROCm's tensors have CUDA's keys.
KEYS = ("CPU", "AutogradCPU", "CUDA", "AutogradCUDA")


def _install(undo: ExitStack) -> None:
    """Register the override, and turn off the fast path of PyTorch's modules."""
    import torch

    _default_priority()  # caches the order before a user inside `sdpa()` can change it
    register(undo, {"scaled_dot_product_attention": _attention}, KEYS)
    config: Any = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):
        # Without this, graphs compiled with and without the override have the same key in the cache on disk
        undo.callback(setattr, config, "cache_key_tag", config.cache_key_tag)
        config.cache_key_tag += "redblue"
    undo.callback(_restore_fast_path, torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(_OFF)


# PyTorch accepts 0 as False. The value 0 distinguishes the override's setting from a user's, which is True or False.
_OFF: Any = 0


def _restore_fast_path(before: bool) -> None:
    """Set the fast path of nn.MultiheadAttention and nn.TransformerEncoder as before, unless the user has set it."""
    import torch

    now = torch.backends.mha.get_fastpath_enabled()
    if now is not True and now is not False:
        torch.backends.mha.set_fastpath_enabled(before)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    import torch

    reason = _reason_against()
    if reason is None:
        try:
            out = scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except RedblueError as error:
            reason = str(error)  # PyTorch computes the call, outside this block so that its own errors stay unchanged
        else:
            _kernels.count(None)
            return out
    _kernels.count(reason)
    pytorch = torch.ops.aten.scaled_dot_product_attention.default.decompose
    return pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


_kernels = Kernels(_install)


def _reason_against() -> str | None:
    """Return the reason why PyTorch should compute all calls, whatever their arguments; None if there is none."""
    import torch

    # Within torch.func's transforms, the dispatcher has already passed the point where our autograd.Function could act
    if torch._C._are_functorch_transforms_active():
        return TRANSFORMED
    for is_enabled in _backend_switches():  # a loop, because a generator slows tiny calls down
        if not is_enabled():
            return CHOSEN
    return None if _priority() == _default_priority() else CHOSEN


@cache
def _backend_switches() -> tuple[Callable[[], bool], ...]:
    """Return the functions that tell whether a kernel of PyTorch is enabled; by default all kernels are."""
    import torch

    kernels = ("flash", "mem_efficient", "math", "cudnn", "overrideable")  # older versions lack some
    names = (f"_get_{kernel}_sdp_enabled" for kernel in kernels)
    return tuple(getattr(torch._C, name) for name in names if hasattr(torch._C, name))


def _priority() -> list[int]:
    """Return the order in which PyTorch tries its kernels; empty in versions without one."""
    import torch

    return getattr(torch._C, "_get_sdp_priority_order", list)()


@cache
def _default_priority() -> list[int]:
    """Return the order that was in force when the override was installed first."""
    return _priority()
