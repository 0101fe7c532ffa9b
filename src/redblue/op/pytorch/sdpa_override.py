"""F.scaled_dot_product_attention of unmodified PyTorch models, through redblue, for as long as asked for.

The override sits in PyTorch's dispatcher, at aten::scaled_dot_product_attention for tensors on the CPU and on GPUs, so
it holds for whoever calls that function, under whatever name, in every thread, and before PyTorch chooses among its own
kernels, which on GPUs leaves head dimensions above 256 and masks to slow ones. What redblue does not take, and tensors
on other devices, PyTorch computes as ever. Functions that torch.compile has compiled keep what was in force then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redblue.base.errors import RedblueError
from redblue.op.scaled_dot_product import scaled_dot_product_attention


class Override:
    """From enable_sdpa: undone by `disable`, once; PyTorch's own returns when nobody asks for redblue any more."""

    def __init__(self) -> None:
        with _lock:
            if not _active:
                _undo.push(_installed())
            _active.append(self)

    def disable(self) -> None:
        """Undo this request. A second time does nothing."""
        with _lock:
            if self in _active:
                _active.remove(self)
                if not _active:
                    _undo.close()


def enable_sdpa() -> Override:
    """Send every F.scaled_dot_product_attention through redblue, until `disable` of what this returns.

    On the CPU and, where Triton is installed, on CUDA and ROCm devices; what redblue does not take stays PyTorch's.
    Raises RedblueError where PyTorch is not installed.
    """
    return Override()


@contextmanager
def sdpa() -> Iterator[None]:
    """The same for the length of a with block, in all threads. Blocks may nest."""
    override = enable_sdpa()
    try:
        yield
    finally:
        override.disable()


_lock = threading.RLock()
_active: list[Override] = []
_undo = ExitStack()  # of what is installed


# Both keys of a device: a tensor has the second but in inference mode. ROCm's tensors have CUDA's.
KEYS = ("CPU", "AutogradCPU", "CUDA", "AutogradCUDA")


def _installed() -> ExitStack:
    """The override in force, and how to undo it. If any of it fails, none of it stays."""
    try:
        import torch
    except ImportError as error:
        raise RedblueError("this needs PyTorch: pip install 'redblue[torch]'") from error

    with ExitStack() as undo:
        undo.callback(_forget_dispatch)  # last
        ours = torch.library.Library("aten", "IMPL")
        undo.callback(ours._destroy)
        for key in KEYS:
            ours.impl("scaled_dot_product_attention", _attention, key)
        _forget_dispatch()
        config: Any = getattr(torch.compiler, "config", None)
        if hasattr(config, "cache_key_tag"):
            # What was compiled with the override and what without are cached on disk under the same key otherwise
            undo.callback(setattr, config, "cache_key_tag", config.cache_key_tag)
            config.cache_key_tag += "redblue"
        return undo.pop_all()


def _forget_dispatch() -> None:
    """What torch.compile's tracing remembers of where calls go."""
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

    # Within torch.func's transforms the dispatcher is past the point where a function of ours could join them
    if not torch._C._are_functorch_transforms_active():
        try:
            return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except RedblueError:
            pass  # PyTorch's turn, outside this block, so that its errors read as ever
    pytorch = torch.ops.aten.scaled_dot_product_attention.default.decompose
    return pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
