"""Make continuous batching (`generate_batch`) accept models with attn_implementation="redblue", on CPUs.

Continuous batching refuses unknown names of attention, unless they contain "flash"; for known names, it builds a dense
mask. So the name "redblue" of a model's attention is replaced by ROUTED while the manager runs. transformers has no
registry for this choice, so the method that makes it is wrapped.
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
    """Make continuous batching accept attention of this name, as ROUTED. Further calls change nothing."""
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
    """Wrap the manager's method that chooses a model's attention, so that it sees the name ROUTED."""

    @functools.wraps(choose, assigned=("__doc__", "__name__", "__qualname__"))
    def switch(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        # ROUTED is still set if the construction of an earlier manager failed
        if model.config._attn_implementation in (name, ROUTED) and model.device.type == "cpu":
            # Not by `set_attn_implementation`, which would look for ROUTED on the hub, because of "flash"
            model.config._attn_implementation = ROUTED
            self._original_attn_impl = name  # which the manager restores when it stops
        choose(self, model, *args, **kwargs)

    return switch
