"""Facts about a call that transformers does not pass on: the model's conventions, and whether a graph is captured."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.import_utils import is_tracing


@torch.compiler.assume_constant_result  # else torch.compile would warn about the cache of `_follows_sdpa`
def follows_sdpa(modeling_module: str) -> bool:
    """Whether the models of a module follow the conventions of PyTorch's SDPA.

    By these conventions, masks may be boolean, and a layer without a mask is causal if its `is_causal` is True. Other
    models support floating masks only: they may join a mask with floating numbers, or extend it by zeros for attended
    keys; and a layer without a mask attends all keys.
    """
    return _follows_sdpa(modeling_module)


@cache
def _follows_sdpa(modeling_module: str) -> bool:
    bases = [
        member
        for member in vars(sys.modules.get(modeling_module, object)).values()
        if isinstance(member, type)
        and issubclass(member, PreTrainedModel)
        and member.__module__ == modeling_module
        and PreTrainedModel in member.__bases__
    ]
    return all(base._supports_sdpa for base in bases)


def is_captured(*values: Any) -> bool:
    """Whether the call becomes part of a graph (torch.compile, torch.export, jit.trace), or these tensors do."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or any(isinstance(x, torch.Tensor) and is_tracing(x) for x in values)
    )
