"""Lets continuous batching (`generate_batch`) take models with attn_implementation="redblue", on CPUs.

Continuous batching refuses names of attention that it does not know, unless they contain "flash"; for the names that it
knows, it builds a dense mask. So a model named "redblue" goes by the name ROUTED while its manager runs. transformers
has no registry for this choice, so the method that makes it is wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

ROUTED = "redblue_flash"
METHOD = "switch_to_cb_friendly_attn"


def manager() -> Any:
    """transformers' class that runs continuous batching. None in versions whose caches `paged_forward` cannot read."""
    try:
        from transformers.generation.continuous_batching import cache_allocators  # noqa: F401
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
    except ImportError:
        return None
    return ContinuousBatchingManager if hasattr(ContinuousBatchingManager, METHOD) else None


def route(name: str) -> None:
    """Let continuous batching take models of this name, by the name ROUTED. Further calls change nothing."""
    owner = manager()
    if owner is not None and not _is_routed(owner):
        setattr(owner, METHOD, _routed(getattr(owner, METHOD), name))


def unroute() -> None:
    """Undo `route`. Further calls do nothing."""
    owner = manager()
    if owner is not None and _is_routed(owner):
        setattr(owner, METHOD, getattr(owner, METHOD).__wrapped__)


def _is_routed(owner: Any) -> bool:
    return getattr(getattr(owner, METHOD), "__module__", None) == __name__


def _routed(choose: Callable[..., None], name: str) -> Callable[..., None]:
    """The manager's method that chooses a model's attention, with the name exchanged before."""

    @functools.wraps(choose, assigned=("__doc__", "__name__", "__qualname__"))
    def switch(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        # ROUTED remains where making an earlier manager failed
        if model.config._attn_implementation in (name, ROUTED) and model.device.type == "cpu":
            # Not by `set_attn_implementation`: it looks for kernels of names with "flash" on the hub
            model.config._attn_implementation = ROUTED
            self._original_attn_impl = name  # which the manager restores when it stops
        choose(self, model, *args, **kwargs)

    return switch
