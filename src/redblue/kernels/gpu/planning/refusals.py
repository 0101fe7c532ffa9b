"""The errors that refuse one launch of a call, while its other launches may still run."""

from __future__ import annotations

import torch
from triton import OutOfResources
from triton.compiler.errors import CompilationError
from triton.runtime.errors import PTXASError

REFUSALS = (OutOfResources, torch.OutOfMemoryError, CompilationError, PTXASError)
REFUSED_BY_A_PASS = ("PassManager::run failed", "failed to translate module to LLVM IR")  # RuntimeErrors of Triton


def is_refusal(error: Exception) -> bool:
    """Whether the error says that this launch does not compile, or needs more than the card or its memory has."""
    return isinstance(error, REFUSALS) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in REFUSED_BY_A_PASS)
    )
