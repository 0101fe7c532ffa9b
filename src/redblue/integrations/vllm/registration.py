"""Replace vLLM's attention on CPUs by redblue, if the user requests it."""

from __future__ import annotations

import os

from redblue.base.errors import RedblueError
from redblue.integrations.vllm.variable import VARIABLE

BACKEND = "redblue.integrations.vllm.backend.RedblueBackend"


def register() -> None:
    """Make redblue vLLM's attention backend CPU_ATTN in this process, if the environment has REDBLUE_VLLM=1.

    Further calls change nothing.

    vLLM calls this function in each of its processes, which inherit the variable. (A call in the user's program would
    not reach them.)
    Raises RedblueError for a value of the variable other than 0 and 1, for a vLLM whose classes differ from those that
    the plug-in was written for, and for a vLLM that does not run on CPUs.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "0", "1"):
        raise RedblueError(
            f"{VARIABLE} must be 1 (redblue computes vLLM's attention on CPUs), 0 or unset: got {wanted!r}"
        )
    if wanted != "1":
        return
    try:
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
        from vllm.v1.attention.backends.registry import (  # pyright: ignore[reportMissingImports]
            AttentionBackendEnum,
            register_backend,
        )

        from redblue.integrations.vllm import backend  # noqa: F401 - fails here, not in the middle of loading a model
    except ImportError as error:
        raise RedblueError(
            f"{VARIABLE}=1 needs vLLM 0.32, or a version with the same classes; unset it to use vLLM without redblue "
            f"({error})"
        ) from error
    if not current_platform.is_cpu():
        raise RedblueError(
            f"{VARIABLE}=1 replaces vLLM's attention on CPUs, but this vLLM runs on {current_platform.device_name}: "
            "unset it"
        )
    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
