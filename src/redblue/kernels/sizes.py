"""The sizes of one call on any device, and the shapes and number types of its arrays."""

from __future__ import annotations

from typing import NamedTuple

from redblue.base.dtypes import sum_dtype

SUMS = ("lse", "delta")  # arrays with one sum per row; their last dimension is 1
WRITTEN = {"forward": ("out", "lse"), "backward": ("dq", "dk", "dv", "delta")}  # the arrays that a pass computes


class Sizes(NamedTuple):
    """The sizes of one call. `group` query heads share a key head.

    A stream is one key head of one batch entry. The queries of its group are stacked: row r of a stream is query
    r // group of head r % group.
    """

    lead: tuple[int, ...]
    kv_heads: int
    group: int
    n_q: int
    n_k: int
    d: int
    d_v: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def streams(self) -> int:
        count = self.kv_heads
        for size in self.lead:
            count *= size
        return count


def array_forms(sizes: Sizes, dtype: str, direction: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape (lead..., heads, rows, columns) and number type of each array of a pass, in the order of its arguments."""
    rows, keys = (*sizes.lead, sizes.heads, sizes.n_q), (*sizes.lead, sizes.kv_heads, sizes.n_k)
    q, k, v, out, sums = (*rows, sizes.d), (*keys, sizes.d), (*keys, sizes.d_v), (*rows, sizes.d_v), (*rows, 1)
    shapes = {"q": q, "k": k, "v": v, "out": out, "lse": sums}
    if direction == "backward":
        shapes |= {"dout": out, "dq": q, "dk": k, "dv": v, "delta": sums}
    return {name: (shape, sum_dtype(dtype) if name in SUMS else dtype) for name, shape in shapes.items()}


def magnitude(count: int) -> int:
    """The count, rounded up to a power of two."""
    return 1 << max(0, count - 1).bit_length()
