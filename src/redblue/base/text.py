"""Numbers, sizes and the user's own texts, formatted for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PREFIXES = ("Y", "Z", "E", "P", "T", "G", "M", "k")
MAX_QUOTED = 60  # characters of the user's text in an error


def quoted(text: str) -> str:
    """Quote the user's text in an error; shorten a long text."""
    return repr(text) if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]!r}... ({len(text):,} characters)"


def amount(number: float | None) -> str:
    """Format a count with an SI prefix; None becomes "-"."""
    if number is None:
        return "-"
    rounded = _rounded(number)
    for i, prefix in enumerate(PREFIXES):
        power = 1000.0 ** (len(PREFIXES) - i)
        if rounded >= power:
            return f"{rounded / power:.3g} {prefix}"
    return f"{number:,.0f}"


def _rounded(number: float) -> float:
    """Round to the three digits that are shown, so that the unit suits the shown number: 999,999 is 1 M, not 1000 k."""
    return float(f"{number:.3g}")


def byte_amount(number: float | None) -> str:
    """Format a number of bytes with an SI prefix; None becomes "-"."""
    if number is None:
        return "-"
    text = amount(number)
    return f"{text}B" if text.endswith(PREFIXES) else f"{text} B"


def capacity(size_bytes: int | None) -> str:
    """Format the size of a memory.

    The unit is binary if the size is a multiple of a quarter of the unit, as in 1.25 MiB; otherwise it is decimal.
    """
    if size_bytes is None:
        return "-"
    for power, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if power <= size_bytes < 1024 * power and size_bytes * 4 % power == 0:
            return f"{size_bytes / power:g} {unit}"
    return byte_amount(size_bytes)


def ratio(number: float | None) -> str:
    """Format a ratio with two decimals; None becomes "-"."""
    return "-" if number is None else f"{number:.2f}"


def nesting_text(nesting: float | None) -> str:
    """Format a remark: the words of nested tiles over the words of the best tiles; empty up to a ratio of 1.05."""
    return f" (nesting: {nesting:.2f} x the words)" if nesting and nesting > 1.05 else ""


def time(seconds: float | None) -> str:
    """Format a duration in the unit that suits it."""
    if seconds is None:
        return "not known"
    rounded = _rounded(seconds)
    if rounded >= 1000:
        return f"{rounded:,.0f} s"
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if rounded >= scale:
            return f"{rounded / scale:.3g} {unit}"
    return f"{rounded / 1e-9:.3g} ns"


def tile_text(tiles: Mapping[str, int]) -> str:
    """Format tile edges, such as "rows 64 cols 16"."""
    return " ".join(f"{edge} {length}" for edge, length in tiles.items())


def limit_text(limit: str | None, unknown: Sequence[str]) -> str:
    """Format the limiting resource of a plan. unknown: resources whose speed is not known."""
    if limit is None:
        return "the limiting resource is not known"
    if not unknown:
        return f"limited by {limit}"
    return f"limited by {limit} among the known resources (not known: {', '.join(unknown)})"
