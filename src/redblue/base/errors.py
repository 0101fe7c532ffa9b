"""What redblue raises when it is given something it cannot use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RedblueError(ValueError):
    """Bad input: the message says what was given, what is allowed and what to do.

    The command line prints it and exits with code 2; everything else is a bug.
    """


class UnknownName(RedblueError):
    """A model, memory or schedule that is not in its catalogue; names the nearest ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
        found = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
        super().__init__(f"unknown {what} {name!r}; {found}" + (f". {hint}" if hint else ""))
