"""`install()`: redblue's functions as the module flash_attn, for programs that import it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from redblue.base.errors import RedblueError
from redblue.base.version import __version__
from redblue.integrations.flash_attn import batched, bert_padding, kv_cache, low_level, packed

# The version of the interface. The local part names redblue; `packaging` orders this version after 2.8.3.
FLASH_ATTN_VERSION = f"2.8.3+redblue.{__version__}"


def _in_16_bits(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict the backward pass to the types of flash-attn, because its callers fail silently with other types.

    ring-flash-attn and yunchang assume that `buffer.to(torch.float32)` is a copy, but for a float32 buffer it is the
    buffer itself.
    """
    signature = inspect.signature(backward)

    @functools.wraps(backward)
    def checked(*args: Any, **kwargs: Any) -> Any:
        q = signature.bind(*args, **kwargs).arguments["q"]
        if getattr(q, "dtype", None) in (torch.float32, torch.float64):
            raise RedblueError(
                f"flash_attn.flash_attn_interface.{backward.__name__} takes float16 and bfloat16 as flash-attn does, "
                f"got {q.dtype}: ring-flash-attn and yunchang compute wrong gradients in other types. In your own "
                "code, call redblue.integrations.flash_attn.low_level"
            )
        return backward(*args, **kwargs)

    # Callers use inspect.getfullargspec, which reads this
    checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return checked


PASSES = (
    low_level._flash_attn_forward,
    _in_16_bits(low_level._flash_attn_backward),
    low_level._flash_attn_varlen_forward,
    _in_16_bits(low_level._flash_attn_varlen_backward),
)
FUNCTIONS = (
    batched.flash_attn_func,
    batched.flash_attn_kvpacked_func,
    batched.flash_attn_qkvpacked_func,
    packed.flash_attn_varlen_func,
    packed.flash_attn_varlen_kvpacked_func,
    packed.flash_attn_varlen_qkvpacked_func,
    kv_cache.flash_attn_with_kvcache,
)
PADDING = (
    bert_padding.index_first_axis,
    bert_padding.index_first_axis_residual,
    bert_padding.index_put_first_axis,
    bert_padding.pad_input,
    bert_padding.unpad_input,
    bert_padding.unpad_input_for_concatenated_sequences,
)

_log = logging.getLogger("redblue")
_lock = threading.Lock()
_modules: dict[str, ModuleType] = {}  # redblue's modules in sys.modules, by their names; empty if there are none
_holders: list[Installation] = []


class Installation:
    """A request of `install`, undone by `uninstall` or at the end of a `with` block.

    served: whether `import flash_attn` leads to redblue; False if the real package is installed.
    """

    def __init__(self) -> None:
        with _lock:
            if not _modules and _is_missing():
                _modules.update(_built())
                sys.modules.update(_modules)
                _log.warning(
                    "flash_attn is redblue %s in this process, as version %s: the real package is not installed",
                    __version__,
                    FLASH_ATTN_VERSION,
                )
            elif not _modules:
                _log.warning("flash_attn is installed, so redblue leaves it in place")
            self.served = bool(_modules)
            if self.served:
                _holders.append(self)

    def uninstall(self) -> None:
        """Undo this request. The last request removes the modules; code that imported them keeps the functions."""
        with _lock:
            if self not in _holders:
                return
            _holders.remove(self)
            self.served = False
            if not _holders:
                for name, module in _modules.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]
                _modules.clear()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()


def install() -> Installation:
    """Make `import flash_attn` import redblue if the real package is missing, and log a warning.

    The modules are flash_attn, flash_attn.flash_attn_interface and flash_attn.bert_padding. Call this before modules
    that look for flash_attn are imported. If the real package is installed, nothing changes.

    Returns an Installation, whose `uninstall()` or `with` block undoes this request.
    """
    return Installation()


def _is_missing() -> bool:
    """Whether there is no module flash_attn."""
    if "flash_attn" in sys.modules:
        return sys.modules["flash_attn"] is None
    return importlib.util.find_spec("flash_attn") is None


def _built() -> dict[str, ModuleType]:
    """The modules, by the names under which they are imported."""
    package = _module("flash_attn", FUNCTIONS, is_package=True)
    package.__version__ = FLASH_ATTN_VERSION  # pyright: ignore[reportAttributeAccessIssue]
    interface = _module("flash_attn.flash_attn_interface", (*FUNCTIONS, *PASSES))
    for function in PASSES:  # the names of flash-attn's compiled wrappers
        setattr(interface, f"_wrapped{function.__name__}", function)
    padding = _module("flash_attn.bert_padding", PADDING)
    package.flash_attn_interface, package.bert_padding = interface, padding  # pyright: ignore
    return {module.__name__: module for module in (package, interface, padding)}


def _module(name: str, functions: tuple, is_package: bool = False) -> ModuleType:
    """A module of these functions, which importlib finds."""
    module = ModuleType(name, f"The interface of {name} 2.8, served by redblue {__version__}.")
    module.__spec__ = ModuleSpec(name, None, origin="redblue", is_package=is_package)
    if is_package:
        module.__path__ = []  # without folders: a submodule that redblue lacks is not found
    for function in functions:
        setattr(module, function.__name__, function)
    module.__all__ = [function.__name__ for function in functions]  # pyright: ignore[reportAttributeAccessIssue]
    return module
