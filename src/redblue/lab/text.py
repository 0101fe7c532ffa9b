"""Describe masks and problems in short texts for tables and titles."""

from __future__ import annotations

from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.masks.rules.layouts import Blocks
from redblue.paged_problem import AnyProblem, PagedProblem
from redblue.problem import Problem

# Shown beside backward counts of the standard schedule, which has an input that other schedules lack.
STANDARD_REMARK = "standard reads the n_q x n_k probabilities that its forward pass stored"


def mask_text(mask: Mask) -> str:
    """Describe in a few words the keys that a query attends."""
    rule = mask.rule
    if mask.is_full:
        return "full"
    if type(rule) is Blocks:
        return f"{rule.shape[0]} x {rule.shape[1]} blocks, density {rule.density:.0%}"
    if not isinstance(rule, Window):
        return repr(mask)
    align = "" if rule.align == "top-left" else f" {rule.align}"
    if rule.left is None and rule.right == 0:
        return f"causal{align}"
    if rule.left == rule.right == 0:
        return f"diagonal{align}"
    sides = [
        f"{'all' if side is None else f'{side:,}'} {where}"
        for side, where in ((rule.left, "back"), (rule.right, "ahead"))
        if side != 0
    ]
    return f"window {' and '.join(sides)}{align}"


def shape_text(p: AnyProblem) -> str:
    """Describe a problem's sizes in one line, which can only break after a comma."""
    parts = [
        f"d {p.d}",
        f"d_v {p.d_v}" if p.d_v != p.d else "",
        f"{p.heads} head{'s' if p.heads > 1 else ''}" + (f" on {p.kv_heads} KV" if p.kv_heads != p.heads else ""),
        *(_sequences(p) if isinstance(p, PagedProblem) else _batch(p)),
        mask_text(p.mask),
        {"forward": "", "paged": "", "gradient_x": "gradient with respect to X"}.get(p.direction, p.direction),
    ]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts if part)


def _batch(p: Problem) -> list[str]:
    sizes = f"n {p.n_q:,}" if p.n_q == p.n_k else f"n_q {p.n_q:,}, n_k {p.n_k:,}"
    return [f"batch {p.batch:,}" if p.batch > 1 else "", sizes]


def _sequences(p: PagedProblem) -> list[str]:
    """Describe the sequences of a paged problem: their number, their lengths, and the number of shared pages."""
    ends = [(min(lengths), max(lengths)) for lengths in (p.queries, p.keys)]
    n_q, n_k = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in ends)
    places, pages = sum(map(len, p.table)), len({page for row in p.table for page in row})
    return [
        f"{p.sequences:,} sequence{'s' if p.sequences > 1 else ''}",
        f"n_q {n_q}",
        f"n_k {n_k}",
        f"pages of {p.page:,}" + (f" ({pages:,} in {places:,} places)" if pages < places else ""),
        "V in K" if p.v_in_k else "",
    ]
