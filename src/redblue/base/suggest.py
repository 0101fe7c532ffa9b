"""Suggest known names in place of an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

COMPARED = 100  # characters of an unknown name that are compared


def suggest(name: str, names: Iterable[str]) -> str:
    """Return "nearest: ..." with at most three of `names` that resemble `name`, or "known: ..." with all of `names`."""
    known = sorted(names)
    by_lower = {word.lower(): word for word in known}
    nearest = difflib.get_close_matches(name[:COMPARED].lower(), by_lower, n=3, cutoff=0.4)
    return f"nearest: {', '.join(by_lower[word] for word in nearest)}" if nearest else f"known: {', '.join(known)}"
