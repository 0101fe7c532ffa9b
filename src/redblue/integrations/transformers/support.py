"""Facts about the models of transformers that decide which conventions their code follows."""

from __future__ import annotations

import sys
from functools import cache

from transformers.modeling_utils import PreTrainedModel


@cache
def follows_sdpa(modeling_module: str) -> bool:
    """Whether the models of a module follow the conventions of PyTorch's SDPA.

    These are: masks may be boolean, and a layer without a mask is causal if its `is_causal` says so. Other models are
    written for floating masks only: they may join a mask with floating numbers, or extend it by zeros that stand for
    attended keys; and a layer without a mask attends all keys.
    """
    bases = [
        each
        for each in vars(sys.modules.get(modeling_module, object)).values()
        if isinstance(each, type)
        and issubclass(each, PreTrainedModel)
        and each.__module__ == modeling_module
        and PreTrainedModel in each.__bases__
    ]
    return all(base._supports_sdpa for base in bases)
