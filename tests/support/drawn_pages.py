"""Random calls on paged caches, and their results in float64, sequence by sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from redblue.masks import Mask
from support.textbook import textbook

HOLE = 2**20  # an entry of a page table that must not be read


@dataclass
class Paged:
    """A call: its tensors, its options, and the places of its keys."""

    q: torch.Tensor  # packed
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: list[int]
    starts: list[int]
    options: dict[str, Any] = field(default_factory=dict)
    packed: bool = True  # False: q is (B, n_q, H, d)

    @property
    def arguments(self):
        """The positional arguments of attention_paged."""
        lengths = torch.tensor(self.lengths, dtype=torch.int64)
        starts = (torch.tensor(self.starts, dtype=torch.int64),) if self.packed else ()
        return self.q, self.k, self.v, self.table, lengths, *starts

    def sequence(self, b):
        """The queries (H, n_q, d) of sequence b, and its keys and values, gathered."""
        page = self.k.shape[1]
        rows = [(int(self.table[b, j // page]), j % page) for j in range(self.lengths[b])]
        gathered = [
            torch.stack([x[row] for row in rows], 1) if rows else x.new_zeros(x.shape[2], 0, x.shape[3])
            for x in (self.k, self.v)
        ]
        return self.q[self.starts[b] : self.starts[b + 1]].transpose(0, 1), *gathered

    def expected(self):
        """The output (total_q, H, d_v) and the log-sum-exp (total_q, H) in float64."""
        outs, lses = [self.q.new_zeros(0, self.q.shape[1], self.v.shape[3]).double()], []
        lses.append(self.q.new_zeros(0, self.q.shape[1]).double())
        for b in range(len(self.lengths)):
            q, k, v = self.sequence(b)
            options = dict(self.options)
            for name in ("alibi", "bias"):
                x = options.pop(name, None)
                if name == "bias" and x is not None:
                    x = x[min(b, len(x) - 1)] if x.dim() == 4 else x
                    x = x[..., : k.shape[1]].expand(q.shape[0], q.shape[1], k.shape[1])
                elif x is not None:
                    x = x[b] if x.dim() == 2 else x
                options[name] = x
            allowed = torch.from_numpy(self.attends(b, q.shape[1], k.shape[1])).to(q.device)
            options.pop("mask", None)
            scores = options.pop("bias")
            if scores is None:
                scores = torch.zeros((), dtype=torch.float64, device=q.device)
            elif scores.dtype == torch.bool:
                scores = torch.zeros_like(scores, dtype=torch.float64).masked_fill(~scores, -torch.inf)
            bias = torch.where(allowed, scores.double(), -torch.inf)
            out, lse = textbook(q, k, v, bias=bias, **options, return_lse=True)
            outs.append(out.transpose(0, 1))
            lses.append(lse.transpose(0, 1))
        return torch.cat(outs), torch.cat(lses)

    def attends(self, b, n_q, n_k):
        """Which keys the queries of sequence b attend: (n_q, n_k)."""
        mask = self.options.get("mask")
        position = np.arange(n_q)[:, None] + n_k - n_q
        key = np.arange(n_k)[None, :]
        if isinstance(mask, torch.Tensor):
            tree = mask[self.starts[b] : self.starts[b + 1]].cpu().numpy()
            allowed = np.ones((n_q, n_k), bool)
            for i in range(n_q):
                for j in range(n_k):
                    newest = j - n_k + tree.shape[1]
                    allowed[i, j] = newest < 0 or tree[i, newest]
            return allowed
        left, right = (None, 0) if mask is None else (mask.rule.left, mask.rule.right)
        allowed = np.ones((n_q, n_k), bool)
        if left is not None:
            allowed &= key >= position - left
        if right is not None:
            allowed &= key <= position + right
        return allowed


def draw(
    seed, lengths, queries, *, page=4, heads=(4, 2), widths=(24, 20), dtype=torch.float64, device="cpu", kind="normal",
    shared=0, options=()
):  # fmt: skip
    """Draw a call. heads: of q, and of keys. widths: d and d_v.

    kind: the layout of the caches; "alias": v is a slice of k. shared: pages that all sequences share. options: names
    of the options to draw.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    (n_heads, kv_heads), (d, d_v) = heads, widths
    needed = [-(-n // page) for n in lengths]
    most = max(needed, default=0) + int(rng.integers(2))
    pages = sum(needed) + 2
    ids, table = rng.permutation(pages), np.full((len(lengths), most), HOLE)
    taken, used = 0, np.zeros((pages, page), bool)
    for b, n in enumerate(lengths):
        table[b, : needed[b]] = ids[taken : taken + needed[b]]
        taken += needed[b]
        if b and shared:
            table[b, :shared] = table[0, :shared]
        for j in range(n):
            used[table[b, j // page], j % page] = True
    k, v = _caches(pages, page, kv_heads, d, d_v, kind, dtype, device)
    for x in (k, v) if kind != "alias" else (k,):
        x.copy_(torch.where(torch.from_numpy(used).to(device)[..., None, None], torch.randn_like(x), torch.nan))
    starts = [0, *np.cumsum(queries).tolist()]
    q = torch.randn(starts[-1], n_heads, d, dtype=dtype, device=device)
    call = Paged(q, k, v, torch.from_numpy(table).to(device), list(lengths), starts)
    drawn = {
        "full": ("mask", lambda: Mask.full()),
        "window": ("mask", lambda: Mask.sliding_window(int(rng.integers(12)), 0, align="bottom-right")),
        "both sides": ("mask", lambda: Mask.sliding_window(9, 2, align="bottom-right")),
        "tree": ("mask", lambda: torch.rand(starts[-1], int(rng.integers(1, 7)), device=device) < 0.6),
        "scale": ("scale", lambda: 0.3),
        "softcap": ("softcap", lambda: 1.5),
        "sinks": ("sinks", lambda: torch.tensor([0.5, -1.0, -torch.inf, 2.0] * n_heads, device=device)[:n_heads]),
        "alibi": ("alibi", lambda: torch.rand(n_heads, device=device)),
        "alibi of each": ("alibi", lambda: torch.rand(len(lengths), n_heads, device=device)),
    }
    call.options = {drawn[name][0]: drawn[name][1]() for name in options}
    return call


def _caches(pages, page, heads, d, d_v, kind, dtype, device):
    """Caches (pages, page, heads, width), NaN, in one of several layouts."""
    if kind == "heads first":  # (heads, pages, page, width), and keys as (heads, pages, width, page)
        k = torch.full((heads, pages, d, page), torch.nan, dtype=dtype, device=device).permute(1, 3, 0, 2)
        return k, torch.full((heads, pages, page, d_v), torch.nan, dtype=dtype, device=device).permute(1, 2, 0, 3)
    if kind == "one array":
        both = torch.full((pages, 2, page, heads, max(d, d_v)), torch.nan, dtype=dtype, device=device)
        return both[:, 0, ..., :d], both[:, 1, ..., :d_v]
    k, v = (torch.full((pages, page, heads, width), torch.nan, dtype=dtype, device=device) for width in (d, d_v))
    return (k, k[..., :d_v]) if kind == "alias" else (k, v)
