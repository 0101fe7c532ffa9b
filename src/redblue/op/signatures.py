"""The signatures of the public functions, made from the table of options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from redblue.kernels.options import TABLE, Arguments, Options

Function = TypeVar("Function", bound=Callable[..., Any])
_DEFAULTS = Options()


def documented(arguments: type) -> Callable[[Function], Function]:
    """A decorator for a function of `**options`: help() and inspect.signature show all of `arguments` by name."""

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        hints = get_type_hints(arguments)
        names = [name for name in TABLE if name in hints]
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = [
            inspect.Parameter(name, keyword, default=getattr(_DEFAULTS, name), annotation=hints[name]) for name in names
        ]
        own_keywords = [p for p in kept if p.kind is keyword]
        positional = [p for p in kept if p.kind is not keyword]
        function.__signature__ = own.replace(parameters=[*positional, *shown, *own_keywords])  # pyright: ignore
        function.__annotations__ = {p.name: p.annotation for p in (*positional, *shown, *own_keywords)} | {
            "return": own.return_annotation
        }
        if function.__doc__:  # None under python -OO
            lines = (textwrap.fill(f"{name}: {TABLE[name].help}", 116) for name in names)
            function.__doc__ = inspect.cleandoc(function.__doc__) + "\n\nOptions:\n\n" + "\n".join(lines) + "\n"
        return function

    return decorate


def options_of(function: str, options: Any, arguments: Any = Arguments) -> Options:
    """The keyword arguments as a record. Raises TypeError, as Python does, for a name that `arguments` lacks."""
    if not options:
        return _DEFAULTS
    if not options.keys() <= arguments.__optional_keys__:
        unknown = next(name for name in options if name not in arguments.__optional_keys__)
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}")
    return Options(**options)
