"""Numbers and sizes as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def amount(number: float | None) -> str:
    """A count with an SI prefix; "-" if there is none."""
    if number is None:
        return "-"
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {prefix}"
    return f"{number:,.0f}"


def capacity(size_bytes: int | None) -> str:
    """A memory's size: binary units where they come out even, else decimal ones."""
    if size_bytes is None:
        return "-"
    for power, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if power <= size_bytes < 1024 * power and size_bytes * 4 % power == 0:
            return f"{size_bytes / power:g} {unit}"
    return f"{amount(size_bytes)}B"


def ratio(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def nesting_text(nesting: float | None) -> str:
    """What nesting costs, where it costs something worth saying."""
    return f" (nesting: {nesting:.2f} x the words)" if nesting and nesting > 1.05 else ""


def time(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def tile_text(tiles: Mapping[str, int]) -> str:
    return " ".join(f"{edge} {length}" for edge, length in tiles.items())


def limit_text(limit: str | None, unknown: Sequence[str]) -> str:
    """What limits, as far as it is known."""
    if limit is None:
        return "what limits is not known"
    if not unknown:
        return f"limited by {limit}"
    return f"limited by {limit} among what is known (not known: {', '.join(unknown)})"
