"""Calls of attention on paged caches, and their inputs.

Does not import redblue, because other environments import this module, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.cpu.calls import DTYPES

ROWS_OUTSIDE, HEADS_OUTSIDE = (
    "rows outside",
    "heads outside",
)  # the layouts (pages, page, H_kv, d) and (pages, H_kv, page, d)


@dataclass(frozen=True)
class Call:
    """One call: n_q queries of every sequence attend to the keys of that sequence.

    d_v: None for separate values of width d; otherwise the values are the first d_v columns of the keys (MLA). tree:
    the queries are a binary tree; otherwise they are causal. shared: the number of leading keys, in whole pages, that
    all sequences share.
    """

    lengths: tuple[int, ...]
    dtype: str = "float32"
    heads: int = 32
    kv_heads: int = 8
    d: int = 128
    d_v: int | None = None
    page: int = 16
    n_q: int = 1
    tree: bool = False
    layout: str = ROWS_OUTSIDE
    shared: int = 0

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Call:
        values: dict[str, Any] = fields | {"lengths": tuple(fields["lengths"])}
        return Call(**values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def group(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.kv_heads

    @property
    def width_v(self) -> int:
        return self.d_v or self.d

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def even(self) -> bool:
        """Whether all sequences are of one length."""
        return len(set(self.lengths)) == 1

    @property
    def bytes(self) -> int:
        """Bytes of the distinct keys and values, which a call must read."""
        keys = sum(self.lengths) - self.shared * (self.batch - 1)
        return keys * self.kv_heads * (self.d if self.d_v else 2 * self.d) * self.torch_dtype.itemsize

    @property
    def flops(self) -> int:
        """FLOPs of both products over the attended pairs."""
        masked = 0 if self.n_q == 1 else int((~newest(self)).sum())
        pairs = sum(self.n_q * n - masked for n in self.lengths)
        return 2 * self.heads * (self.d + self.width_v) * pairs

    @property
    def title(self) -> str:
        kind = "MHA" if self.group == 1 else "MQA" if self.kv_heads == 1 else "GQA"
        heads = f"{kind} {self.heads}" + (f"/{self.kv_heads}" if self.group > 1 else "")
        longest, shortest = max(self.lengths), min(self.lengths)
        n_k = f"{longest:,}" if self.even else f"{longest:,} and {self.batch - 1} x {shortest:,}"
        width = f"{self.d}/{self.d_v}" if self.d_v else str(self.d)
        parts = [heads, f"B {self.batch}", f"n_k {n_k}", f"d {width}", f"page {self.page}"]
        parts += [f"n_q {self.n_q}{', tree' * self.tree}"] if self.n_q > 1 else []
        parts += [self.layout] if self.layout != ROWS_OUTSIDE else []
        parts += [f"{self.shared:,} shared"] if self.shared else []
        return ", ".join(parts)


class Inputs(NamedTuple):
    """q (B, n_q, H, d), pages (pages, page, H_kv, width), table (B, most pages) and lengths (B,), both int32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor


def inputs(call: Call) -> Inputs:
    """Normally distributed numbers in pages of random order; equal for equal calls."""
    generator = torch.Generator().manual_seed(call.d)
    table, pages = _table(call, generator)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=call.torch_dtype).normal_(generator=generator)

    def cache() -> torch.Tensor:
        if call.layout == HEADS_OUTSIDE:
            return normal(pages, call.kv_heads, call.page, call.d).transpose(1, 2)
        return normal(pages, call.page, call.kv_heads, call.d)

    q = normal(call.batch, call.n_q, call.heads, call.d)
    k = cache()
    v = k[..., : call.d_v] if call.d_v else cache()
    return Inputs(q, k, v, table, torch.tensor(call.lengths, dtype=torch.int32))


def _table(call: Call, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """The page table, and the number of pages. Sequences have a shared prefix, then their own pages."""
    needed = [-(-n // call.page) for n in call.lengths]
    prefix = call.shared // call.page
    pages = prefix + sum(n - prefix for n in needed)
    order = torch.randperm(pages, generator=generator).int()
    table = torch.zeros(call.batch, max(needed), dtype=torch.int32)
    table[:, :prefix] = order[:prefix]
    first = prefix
    for row, n in zip(table, needed, strict=True):
        row[prefix:n] = order[first : first + n - prefix]
        first += n - prefix
    return table, pages


def sequence(pages: torch.Tensor, x: Inputs, b: int) -> torch.Tensor:
    """A copy of the keys or values of sequence b, (n_k, H_kv, width)."""
    n = int(x.lengths[b])
    used = x.table[b, : -(-n // pages.shape[1])].long()
    return pages[used].flatten(0, 1)[:n]


def newest(call: Call) -> torch.Tensor:
    """Which of the n_q newest keys each query attends, (n_q, n_q): its ancestors in the tree, or the earlier keys."""
    if not call.tree:
        return torch.ones(call.n_q, call.n_q, dtype=torch.bool).tril()
    attends = torch.eye(call.n_q, dtype=torch.bool)
    for row in range(1, call.n_q):
        attends[row] |= attends[(row - 1) // 2]
    return attends


def attended(call: Call, n_k: int) -> torch.Tensor:
    """Which keys of a sequence of n_k keys each query attends, (n_q, n_k)."""
    attends = torch.ones(call.n_q, n_k, dtype=torch.bool)
    attends[:, n_k - call.n_q :] = newest(call)
    return attends
