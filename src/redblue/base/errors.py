"""The exceptions that redblue raises for bad input."""

from __future__ import annotations

from collections.abc import Iterable

from redblue.base.suggest import suggest
from redblue.base.text import quoted


class RedblueError(ValueError):
    """Bad input: the message says what was given, what is allowed and what to do.

    The command line prints the message and exits with code 2. Any other exception is a bug.
    """


class UnknownName(RedblueError):
    """A name that is not among the known ones: the message suggests the nearest known names.

    kind: the kind of thing that has the name, such as "model". hint: text that ends the message.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(f"unknown {kind} {quoted(name)}; {suggest(name, known)}" + (f". {hint}" if hint else ""))
