"""Check the types of arguments at the public border, from the annotations of the function."""

from __future__ import annotations

import functools
import inspect
import os
import reprlib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from redblue.base.errors import RedblueError

Public = TypeVar("Public", bound=Callable[..., Any])

NOUNS: dict[Any, str] = {
    bool: "True or False",
    str: "text",
    os.PathLike: "a path",
    Mapping: "a mapping",
    Callable: "a function",
    type(None): "None",
    **dict.fromkeys((Sequence, Iterable, Iterator, Collection), "a sequence"),
}
UNCHECKED = (object, Any, int, float)  # Any is a class from Python 3.11 on
SEQUENCES = (Sequence, Iterable, Iterator, Collection)


def checked_arguments(public: Public) -> Public:
    """Decorate a public function so that an argument of a wrong type raises a RedblueError with its name.

    The annotations give the allowed types: classes, unions, and containers, whose elements are not checked. The
    function itself checks its numbers, because it knows their ranges. A missing or unknown argument still raises
    Python's TypeError.
    """
    signature = inspect.signature(public)

    @functools.cache
    def allowed() -> dict[str, tuple[Any, ...]]:
        hints = get_type_hints(public)
        return {name: kinds for name in signature.parameters if (kinds := _kinds(hints.get(name, Any)))}

    @functools.wraps(public)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        for name, kinds in allowed().items():
            if name in bound and bound[name] is not signature.parameters[name].default:
                _check(name, bound[name], kinds)
        return public(*args, **kwargs)

    return checked  # pyright: ignore[reportReturnType]


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows, without their parameters; empty if the argument is not checked."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_kinds(part) for part in get_args(hint)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    kind = get_origin(hint) or hint
    return (kind,) if inspect.isclass(kind) and kind not in UNCHECKED else ()


def _check(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Raise RedblueError, which names the argument, unless the value is of one of the kinds."""
    if not any(_is(value, kind) for kind in kinds):
        nouns = list(dict.fromkeys(NOUNS.get(kind, f"a {kind.__name__}") for kind in kinds))
        raise RedblueError(f"{name} must be {' or '.join(nouns)}, got {reprlib.repr(value)}")


def _is(value: Any, kind: Any) -> bool:
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if kind in SEQUENCES:  # arrays and generators, too; but text is one value
        return hasattr(value, "__iter__") and not isinstance(value, (str, bytes))
    return isinstance(value, kind)
