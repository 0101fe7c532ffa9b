"""An override that sends F.scaled_dot_product_attention of unmodified PyTorch models through redblue.

The override sits in PyTorch's dispatcher, at aten::scaled_dot_product_attention for tensors on the CPU and on GPUs. So
it holds for every caller of that function, under any name, in every thread. It acts before PyTorch chooses one of its
own kernels; on a GPU, only the slow ones take masks or head dimensions above 256. PyTorch itself computes the calls
that redblue does not take, all calls while the user has chosen among PyTorch's kernels (torch.nn.attention.sdpa_kernel,
torch.backends.cuda.enable_flash_sdp and the like), and calls on other devices. A compiled function keeps the state of
the override and the choice of kernels at the time of its compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from redblue.base.errors import RedblueError
from redblue.op.pytorch.sdpa_usage import Usage
from redblue.op.scaled_dot_product import scaled_dot_product_attention

CHOSEN = "torch.nn.attention.sdpa_kernel or torch.backends.cuda chose among PyTorch's kernels"
TRANSFORMED = "the call is inside a transform of torch.func, such as vmap or grad"


class Override:
    """A request of enable_sdpa, undone by `disable`. PyTorch's own function returns when no request is left.

    used: the record of all threads' calls while the request was in force (see Usage).
    """

    def __init__(self) -> None:
        self.used = Usage()
        with _lock:
            if not _active:
                _undo.push(_installed())
            _active.append(self)

    def disable(self) -> None:
        """Undo this request. Further calls do nothing."""
        with _lock:
            if self in _active:
                _active.remove(self)
                if not _active:
                    _undo.close()


def enable_sdpa() -> Override:
    """Send every F.scaled_dot_product_attention through redblue, until the returned Override is disabled.

    This holds on the CPU and, if Triton is installed, on CUDA and ROCm devices. PyTorch computes the calls that redblue
    does not take, and all calls under a torch.nn.attention.sdpa_kernel of the user, inside or outside; `used` of the
    Override counts them. Raises RedblueError if PyTorch is not installed.
    """
    return Override()


@contextmanager
def sdpa() -> Iterator[Usage]:
    """A context in which enable_sdpa holds, in all threads. Contexts may nest.

    Yields the record of the calls that were served and refused, with the reasons; it stays readable after the block.
    """
    override = enable_sdpa()
    try:
        yield override.used
    finally:
        override.disable()


_lock = threading.RLock()
_active: list[Override] = []
_undo = ExitStack()  # removes the override


# Both keys of a device: a tensor has the second one except in inference mode. ROCm's tensors have CUDA's keys.
KEYS = ("CPU", "AutogradCPU", "CUDA", "AutogradCUDA")


def _installed() -> ExitStack:
    """Install the override; the result undoes it. If a step fails, the steps before it are undone."""
    try:
        import torch
    except ImportError as error:
        raise RedblueError("this needs PyTorch: pip install 'redblue[torch]'") from error

    _default_priority()  # caches the order before a user inside `sdpa()` can change it
    with ExitStack() as undo:
        undo.callback(_forget_dispatch)  # runs last
        ours = torch.library.Library("aten", "IMPL")
        undo.callback(ours._destroy)
        for key in KEYS:
            ours.impl("scaled_dot_product_attention", _attention, key)
        _forget_dispatch()
        config: Any = getattr(torch.compiler, "config", None)
        if hasattr(config, "cache_key_tag"):
            # Without this, graphs compiled with and without the override have the same key in the cache on disk
            undo.callback(setattr, config, "cache_key_tag", config.cache_key_tag)
            config.cache_key_tag += "redblue"
        return undo.pop_all()


def _forget_dispatch() -> None:
    """Clear the targets of calls that torch.compile's tracing has cached."""
    import torch

    getattr(torch.ops.aten.scaled_dot_product_attention.default, "_dispatch_cache", {}).clear()


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
            _count(None)
            return out
    _count(reason)
    pytorch = torch.ops.aten.scaled_dot_product_attention.default.decompose
    return pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _count(reason: str | None) -> None:
    """Add a call to the record of every request in force."""
    with _lock:
        for override in _active:
            override.used.add(reason)


def _reason_against() -> str | None:
    """Return why PyTorch should compute a call, whatever its arguments; None if redblue should."""
    import torch

    # Within torch.func's transforms the dispatcher is already past the point where our autograd.Function could be used
    if torch._C._are_functorch_transforms_active():
        return TRANSFORMED
    enabled = all(is_enabled() for is_enabled in _backend_switches())
    return None if enabled and _priority() == _default_priority() else CHOSEN


@cache
def _backend_switches() -> tuple[Callable[[], bool], ...]:
    """Return the functions that tell whether a kernel of PyTorch's is enabled; all are by default."""
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
