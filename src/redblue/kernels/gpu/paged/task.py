"""The arguments of a call on paged caches on a GPU, and the launches of its kernels as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.arrays import Array
from redblue.kernels.gpu.launch import PlanOptions, Run, parts
from redblue.kernels.gpu.paged.forward import paged_forward
from redblue.kernels.gpu.paged.merge import merged, paged_merge
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.scores import Scores, is_plain, scores_of
from redblue.kernels.options import Options
from redblue.kernels.sizes import Sizes


class Arrays(NamedTuple):
    """The arrays of a Layout (layout.py) that kernels read, on the device."""

    nodes: Tensor
    members: Tensor
    merged: Tensor
    starts: Tensor
    parts: Tensor


class Work(NamedTuple):
    """A layout on the device, and memory for partial results in the type of the sums."""

    arrays: Arrays
    out: Tensor  # (key heads, partial rows, d_v)
    lse: Tensor  # (key heads, partial rows)
    unaligned: bool  # whether a node begins after its sequence's first key


@dataclass(frozen=True)
class PagedTask:
    """The checked tensors and options of a call. Tensors have any strides, except out and lse, which are contiguous."""

    sizes: Sizes  # lead: (B,); n_q: queries of a sequence, if there is a bias; n_k: keys of the longest one
    q: Tensor  # (total_q, heads, d)
    k: Tensor  # (pages, page, key heads, d)
    v: Tensor  # (pages, page, key heads, d_v)
    table: Tensor  # (B, pages of a sequence), whole numbers
    out: Tensor  # (total_q, heads, d_v)
    lse: Tensor  # (total_q, heads), in the type of the sums
    record: Options = field(default_factory=Options)  # bias (B, heads, n_q, keys), sinks (heads,), alibi (B, heads)
    first: int | None = None  # a query at position i attends keys i + first .. i + end - 1; None: without limit
    end: int | None = None
    tree: Tensor | None = None  # int8 or int32 (total_q, newest): whether a query attends each of its newest keys
    cut_keys: int = 0  # this and first_row as in Task (launch.py)
    first_row: int = 0

    @property
    def aliased(self) -> bool:
        """Whether the values are features of the keys, so that the kernel does not load them again."""
        k, v, ((d0, d1), (v0, v1)) = self.k, self.v, (parts(self.sizes.d), parts(self.sizes.d_v))
        same = k.data_ptr() == v.data_ptr() and k.dtype == v.dtype and k.stride() == v.stride()
        return same and d0 == v0 and v1 in (0, d1) and self.sizes.d_v <= self.sizes.d

    @property
    def plan_options(self) -> PlanOptions:
        pairs = self.record.bias is not None or self.tree is not None
        return PlanOptions(pairs, softcap=bool(self.record.softcap), aliased=self.aliased)

    @property
    def scores(self) -> Scores:
        scores = scores_of(self)
        bias = scores.bias
        if bias is None:
            return scores
        # Kernels find a row of the bias by its packed query, whose index already counts the n_q rows of each earlier
        # sequence. So these rows are subtracted from the batch stride
        return scores._replace(bias=bias._replace(batch=bias.batch - self.sizes.n_q * bias.row))

    @property
    def wide(self) -> bool:
        """Whether some offset within a cache or a bias needs more than 32 bits."""
        return any(x is not None and _reach(x) >= 2**31 for x in (self.k, self.v, self.tree, self.record.bias))

    def forward(self, work: Work, items: Tensor, launch: Launch, precision: str = "ieee") -> Run:
        """The launch that attends the keys of `items` (Layout.items, for launch.tiles.rows)."""
        sizes, (rows, cols, _) = self.sizes, launch.tiles
        (d0, d1), (v0, v1) = parts(sizes.d), parts(sizes.d_v)
        arguments: dict[str, Any] = {
            "q": Array(self.q, 0, *_by_rows(self.q)),
            "k": _cache(self.k),
            "v": _cache(self.v),
            "out": Array(self.out, 0, *_by_rows(self.out)),
            "lse": self.lse,
            "part_out": work.out,
            "part_lse": work.lse,
            "table": self.table,
            "table_row": self.table.stride(0),
            "table_col": self.table.stride(1),
            "items": items,
            "nodes": work.arrays.nodes,
            "members": work.arrays.members,
            "tree": work.arrays.members if self.tree is None else self.tree,
            "newest": 0 if self.tree is None else self.tree.shape[1],
            "scores": self.scores,
            "kv_heads": sizes.kv_heads,
            "partial_rows": work.lse.shape[1],
            "GROUP": sizes.group,
            "D": sizes.d,
            "D0": d0,
            "D1": d1,
            "D_V": sizes.d_v,
            "V0": v0,
            "V1": v1,
            "PAGE": max(1, self.k.shape[1]),
            "ALIASED": self.aliased,
            "TREE": self.tree is not None,
            "UNALIGNED": work.unaligned or self.first is not None,
            "ROWS": rows,
            "COLS": cols,
            "PLAIN": is_plain(self.record, sizes),
            "WIDE": self.wide,
            "PRECISION": precision,
        }
        # Triton prefetches a tile only after its page numbers have arrived, which takes an extra stage per buffer
        stages = 2 * launch.stages - 1
        return Run(paged_forward, (len(items), sizes.kv_heads), arguments, launch.warps, stages)

    def merge(self, work: Work) -> Run:
        """The launch that merges partial results. Its grid is empty if there are none."""
        sizes = self.sizes
        width, rows, parts_at_once = merged(sizes.d_v, sizes.group)
        arguments: dict[str, Any] = {
            "part_out": work.out,
            "part_lse": work.lse,
            "out": self.out,
            "lse": self.lse,
            "scores": self.scores,
            "queries": work.arrays.merged,
            "starts": work.arrays.starts,
            "parts": work.arrays.parts,
            "kv_heads": sizes.kv_heads,
            "partial_rows": work.lse.shape[1],
            "GROUP": sizes.group,
            "D_V": sizes.d_v,
            "WIDTH": width,
            "ROWS": rows,
            "PARTS": parts_at_once,
        }
        grid = len(work.arrays.merged), sizes.kv_heads, ceil_div(sizes.group, rows)
        return Run(paged_merge, grid, arguments, 4, 1)


def _by_rows(x: Tensor) -> Iterable[int]:
    """The strides of heads, rows and columns of packed rows."""
    row, head, col = x.stride()
    return head, row, col


def _cache(x: Tensor) -> Array:
    """A cache in the form for kernels: its pages take the place of the batch."""
    page, row, head, col = x.stride()
    return Array(x, page, head, row, col)


def _reach(x: Tensor) -> int:
    """The largest offset of an element, in elements."""
    return sum(max(0, size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
