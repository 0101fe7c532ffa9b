"""An extension of Griffe, which reads the sources for the API pages: signatures as they are when called, and Markdown.

Functions of `**options` show every option (`documented` in op/signatures.py). Docstrings are plain text: a line that
begins "name: " explains a parameter, and becomes an item of a list.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

PARAMETER = re.compile(r"^((?:[a-zA-Z_]\w*(?: \([^)]*\))?)(?:, [a-zA-Z_]\w*(?: \([^)]*\))?)*): (?=\S)")


class Api(griffe.Extension):
    """Complete the signatures and docstrings of the public functions."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Show the signature and the docstring that a decorator made, and turn the docstring into Markdown."""
        if isinstance(obj, griffe.Function):
            real = _real(obj)
            if getattr(real, "__signature__", None) is not None:
                obj.parameters = griffe.Parameters(*map(_parameter, inspect.signature(real).parameters.values()))
                obj.docstring = griffe.Docstring(inspect.getdoc(real) or "", parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = markdown(inspect.cleandoc(obj.docstring.value))


def _real(func: griffe.Function) -> Any:
    """Return the function at run time; None if its library is missing or it is not at the top of a module."""
    try:
        return getattr(importlib.import_module(func.parent.path), func.name, None) if func.parent else None
    except ImportError:
        return None


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    """Convert a parameter of `inspect` into one of Griffe."""
    kind = griffe.ParameterKind(parameter.kind.description)
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    annotation = None if parameter.annotation is parameter.empty else _text(parameter.annotation)
    return griffe.Parameter(parameter.name, annotation=annotation, kind=kind, default=default)


def _text(annotation: Any) -> str:
    """Write an annotation as the sources do."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:redblue\.[\w.]+\.|typing\.|collections\.abc\.)", "", text)


def markdown(text: str) -> str:
    """Return a docstring as Markdown: parameters as a list, and no accidental markup."""
    lines: list[str] = []
    inside = False  # a parameter's item
    for line in text.splitlines():
        match = PARAMETER.match(line)
        if match:
            lines += [] if inside or not lines or not lines[-1] else [""]
            lines.append(f"- `{match[1]}`: {escaped(line[match.end() :])}")
            inside = True
        elif inside and line.strip():
            lines.append("    " + escaped(line.strip()))
        else:
            inside = False
            lines.append(line if line.startswith("    ") else escaped(line))
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Escape the characters of plain text that Markdown would read as markup, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)
