"""The exceptions that redblue raises for bad input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RedblueError(ValueError):
    """Bad input: the message says what was given, what is allowed and what to do.

    The command line prints it and exits with code 2; everything else is a bug.
    """


class UnknownName(RedblueError):
    """A name that is not among the known ones: the message suggests the nearest known names.

    kind: the kind of thing that has the name, such as "model". hint: text that ends the message.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
        suggestion = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(known)}"
        super().__init__(f"unknown {kind} {name!r}; {suggestion}" + (f". {hint}" if hint else ""))
