"""How the report words its figures."""

from __future__ import annotations

from redblue.masks import Mask
from redblue.problem import Problem
from redblue.report.data import Report


def shape_text(p: Problem) -> str:
    """A problem's sizes in a line that breaks only at its commas."""
    parts = [
        f"d {p.d}",
        f"d_v {p.value_dim}" if p.value_dim != p.d else "",
        f"{p.heads} head{'s' if p.heads > 1 else ''}" + (f" on {p.key_heads} KV" if p.key_heads != p.heads else ""),
        f"batch {p.batch:,}" if p.batch > 1 else "",
        f"n {p.n_q:,}" if p.n_q == p.n_k else f"n_q {p.n_q:,}, n_k {p.n_k:,}",
        mask_text(p.mask),
        "backward" if p.direction == "backward" else "",
    ]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts if part)


def mask_text(mask: Mask) -> str:
    """Which keys a query attends, in a word or two."""
    if mask.is_full:
        return "full"
    if mask.left is None and mask.right == 0:
        return "causal"
    sides = [f"{side:,} {where}" for side, where in ((mask.left, "back"), (mask.right, "ahead")) if side]
    return f"window {' and '.join(sides) or 'of itself'}"


def verdict(report: Report) -> str:
    """The checks in a sentence."""
    total, failed = len(report.checks), len(report.failed)
    if not total:
        return "Nothing was checked: no schedule fits at any boundary."
    if failed:
        return f"{failed} of {total} checks FAILED."
    return f"All {total} checks passed: words counted by the runs equal the closed forms, results equal float64."
