"""Register redblue's attention function and mask function with transformers."""

from __future__ import annotations

import threading
from inspect import signature
from typing import Any

from redblue.base.errors import RedblueError
from redblue.integrations.transformers.batching import ROUTED, manager, route, unroute

NAME = "redblue"


_lock = threading.RLock()
_requests: list[Registration] = []  # those in force


class Registration:
    """A request of `register`, undone by `undo` or at the end of a `with` block."""

    def undo(self) -> None:
        """Undo this request. The last request removes redblue from transformers' registries. Further calls do nothing.

        Without requests, models that were made with `attn_implementation="redblue"` need another implementation:
        `model.set_attn_implementation("sdpa")`.
        """
        with _lock:
            if self not in _requests:
                return
            _requests.remove(self)
            if _requests:
                return
            unroute()
            for registry, name, function in _entries():
                if registry.get(name) is function:
                    del registry[name]

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def register() -> Registration:
    """Make `attn_implementation="redblue"` work in transformers, until every request has been undone.

    On CPUs this includes `generate_batch` (continuous batching), with transformers 5.23.
    Returns a Registration, whose `undo()` or `with` block undoes this request. Raises RedblueError if
    transformers or PyTorch is not installed, or if the name belongs to another implementation.
    """
    with _lock:
        entries = _entries()
        for registry, name, function in entries:
            if registry.get(name, function) is not function:
                raise RedblueError(
                    f'transformers already has another implementation named "{name}", {registry[name]!r}: remove it '
                    "first"
                )
        for registry, name, function in entries:
            registry[name] = function
        route(NAME)
        registration = Registration()
        _requests.append(registration)
    return registration


def _entries() -> tuple[tuple[dict[str, Any], str, Any], ...]:
    """Registries of transformers, names, and redblue's functions. Raises RedblueError if a package is missing."""
    needed = 'attn_implementation="redblue" needs PyTorch and transformers 5.6 or newer'
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, __version__
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise RedblueError(f"{needed}: pip install 'redblue[transformers]' ({error})") from error
    if "q_length" not in signature(sdpa_mask).parameters:  # older mask functions take other arguments
        raise RedblueError(f"{needed}, got transformers {__version__}: pip install 'redblue[transformers]'")
    from redblue.integrations.transformers.attention import attention_forward
    from redblue.integrations.transformers.mask_function import redblue_mask

    entries = [
        (AttentionInterface._global_mapping, NAME, attention_forward),
        (AttentionMaskInterface._global_mapping, NAME, redblue_mask),
    ]
    if manager() is not None:
        from redblue.integrations.transformers.paged import paged_forward

        entries.append((AttentionInterface._global_mapping, ROUTED, paged_forward))
    return tuple(entries)
