"""Numbers, sizes and problems as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.masks.rules.layouts import Blocks
from redblue.problem import Problem

# Said wherever the standard schedule's backward counts are shown: it starts from more than the others do.
STANDARD_REMARK = "standard is given the n_q x n_k probabilities that its forward pass kept"


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


def mask_text(mask: Mask) -> str:
    """Which keys a query attends, in a word or two."""
    rule = mask.rule
    if mask.is_full:
        return "full"
    if type(rule) is Blocks:
        return f"{rule.shape[0]} x {rule.shape[1]} blocks, {rule.density:.0%} of them"
    if not isinstance(rule, Window):
        return repr(mask)
    align = "" if rule.align == "top-left" else f" {rule.align}"
    if rule.left is None and rule.right == 0:
        return f"causal{align}"
    sides = [f"{side:,} {where}" for side, where in ((rule.left, "back"), (rule.right, "ahead")) if side]
    return f"window {' and '.join(sides) or 'of itself'}{align}"


def shape_text(p: Problem) -> str:
    """A problem's sizes in a line that breaks only at its commas."""
    parts = [
        f"d {p.d}",
        f"d_v {p.value_dim}" if p.value_dim != p.d else "",
        f"{p.heads} head{'s' if p.heads > 1 else ''}" + (f" on {p.key_heads} KV" if p.key_heads != p.heads else ""),
        f"batch {p.batch:,}" if p.batch > 1 else "",
        f"n {p.n_q:,}" if p.n_q == p.n_k else f"n_q {p.n_q:,}, n_k {p.n_k:,}",
        mask_text(p.mask),
        {"forward": "", "gradient_x": "gradient with respect to X"}.get(p.direction, p.direction),
    ]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts if part)
