"""Paged calls: their float64 reference, which walks the table key by key, and strategies for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import redblue as rb
from redblue.lab import reference
from support.attention import DTYPES, Case
from support.drawn_calls import laid
from support.tolerances import check_close, floors, in_sums, unfused

GARBAGE = np.array([-1, -(2**31), 2**31 - 1, 10**9, 7])  # entries of tables beyond the pages of a sequence


@dataclass
class PagedCase:
    """One call of attention_paged: its arrays and its keyword arguments."""

    q: np.ndarray
    k_pages: np.ndarray
    v_pages: np.ndarray
    page_table: np.ndarray
    lengths_k: np.ndarray
    cu_seqlens_q: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=dict)
    layout: str = "plain"  # of the pages: see `caches`

    @property
    def starts(self) -> np.ndarray:
        """The first packed row of each sequence's queries, and the number of rows."""
        batch = len(self.lengths_k)
        n = self.q.shape[1]
        return np.arange(batch + 1) * n if self.cu_seqlens_q is None else self.cu_seqlens_q

    def __repr__(self) -> str:
        lines = []
        for name, x in {**vars(self), **self.options}.items():
            shown = f"{x.dtype} {x.shape}, strides {x.strides}" if isinstance(x, np.ndarray) and x.ndim > 2 else x
            lines.append(f"{name}: {shown}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def tensor(array: Any) -> Any:
    """The array as a tensor of the same memory; anything else as it is."""
    import torch

    if not isinstance(array, np.ndarray):
        return array
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(tensor: Any) -> np.ndarray:
    """The tensor as an array of the same memory."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
    return tensor.numpy()


def arguments(case: PagedCase) -> tuple[Any, ...]:
    return case.q, case.k_pages, case.v_pages, case.page_table, case.lengths_k, case.cu_seqlens_q


def run(case: PagedCase) -> tuple[np.ndarray, np.ndarray]:
    """The results on NumPy arrays."""
    return rb.attention_paged(*arguments(case), return_lse=True, **case.options)


def run_on_torch(case: PagedCase) -> tuple[np.ndarray, np.ndarray]:
    """The results on tensors of the same memory."""
    options = {name: tensor(x) for name, x in case.options.items()}
    results = rb.attention_paged(*map(tensor, arguments(case)), return_lse=True, **options)
    return tuple(array(x) for x in results)  # pyright: ignore


def bits(results: tuple[np.ndarray, ...]) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in results]


# The reference -----------------------------------------------------------------------------------------------------


def walked(case: PagedCase, pages: np.ndarray, sequence: int) -> np.ndarray:
    """The rows of a cache for the keys of a sequence, (H_kv, n_k, width), looked up key by key."""
    page = pages.shape[1]
    rows = [pages[case.page_table[sequence, j // page], j % page] for j in range(case.lengths_k[sequence])]
    return np.stack(rows, 1) if rows else np.zeros((pages.shape[2], 0, pages.shape[3]), pages.dtype)


def attended(case: PagedCase, sequence: int, n_q: int, n_k: int) -> np.ndarray:
    """Which keys each query of a sequence attends: (n_q, n_k)."""
    mask = case.options.get("mask")
    if mask is None:
        mask = rb.Mask.causal(align="bottom-right")
    if isinstance(mask, rb.Mask):
        return mask.to_dense(n_q, n_k)
    lead = case.q.shape[:-2]
    tree = np.broadcast_to(mask, (*lead, mask.shape[-1])).reshape(case.starts[-1], mask.shape[-1])
    attends = np.ones((n_q, n_k), bool)
    for i in range(n_q):
        for back in range(min(n_k, tree.shape[-1])):  # from the newest key backwards
            attends[i, n_k - 1 - back] = tree[case.starts[sequence] + i, tree.shape[-1] - 1 - back]
    return attends


def one_sequence(case: PagedCase, sequence: int) -> Case:
    """The call of rb.attention that computes one sequence."""
    first, end = case.starts[sequence : sequence + 2]
    q = case.q.reshape(-1, *case.q.shape[-2:])[first:end].swapaxes(0, 1)
    k, v = walked(case, case.k_pages, sequence), walked(case, case.v_pages, sequence)
    n_q, n_k = q.shape[1], k.shape[1]
    options = {name: case.options.get(name) for name in ("scale", "softcap", "sinks")}
    alibi, bias = case.options.get("alibi"), case.options.get("bias")
    if alibi is not None:
        options["alibi"] = np.broadcast_to(alibi, (len(case.lengths_k), len(q)))[sequence]
    if bias is not None:
        longest = int(case.lengths_k.max())
        options["bias"] = np.broadcast_to(bias, (len(case.lengths_k), len(q), n_q, longest))[sequence, ..., :n_k]
    if n_q * n_k:
        options["mask"] = rb.Mask.from_dense(attended(case, sequence, n_q, n_k))
    return Case(q, k, v, np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), options)


def check(case: PagedCase, results: tuple[np.ndarray, np.ndarray]) -> None:
    """Check the results of a call against float64, sequence by sequence."""
    out, lse = results
    assert out.shape == (*case.q.shape[:-1], case.v_pages.shape[-1])
    assert lse.shape == case.q.shape[:-1]
    assert out.dtype == case.q.dtype
    assert lse.dtype == (np.float64 if out.dtype == np.float64 else np.float32)
    rows, sums = out.reshape(-1, *out.shape[-2:]), lse.reshape(-1, lse.shape[-1])
    for b, (first, end) in enumerate(zip(case.starts, case.starts[1:], strict=False)):
        single = one_sequence(case, b)
        exact, floor = reference.forward(single.q, single.k, single.v, **single.arguments()), floors(single)
        check_close("out", rows[first:end].swapaxes(0, 1), exact.out, unfused(single)["out"], floor["out"])
        check_close("lse", sums[first:end].swapaxes(0, 1), exact.lse, unfused(in_sums(single))["lse"], floor["lse"])


# Strategies --------------------------------------------------------------------------------------------------------

PAGE_SIZES = st.integers(1, 6) | st.sampled_from([7, 8, 15, 16, 17, 31, 32, 33, 48])
LAYOUTS = ("plain", "plain", "heads outside", "packed", "columns apart", "rows apart", "columns outside")


def table_of(rng: np.random.Generator, lengths: np.ndarray, page: int, kind: str) -> tuple[np.ndarray, int]:
    """A table for these lengths, and the number of pages of its cache, some of which no sequence uses.

    kind: "distinct"; "repeated": pages may occur several times; "shared": sequences share leading pages, nested;
    "common": all share some leading pages.
    """
    needed = -(-lengths // page)
    total = int(needed.sum())
    pages = total + int(rng.integers(0, 4))
    width = int(needed.max(initial=0)) + int(rng.integers(0, 3))
    table = rng.choice(GARBAGE, (len(lengths), width))
    free = list(rng.permutation(pages))
    for b, count in enumerate(needed):
        table[b, :count] = [free.pop() for _ in range(count)]
    if kind == "repeated" and total:
        used = np.arange(width) < needed[:, None]
        again = used & (rng.random(table.shape) < 0.3)
        table[again] = rng.choice(table[used], again.sum())
    if kind == "shared":
        for b in range(1, len(lengths)):  # nested: each sequence shares pages with an earlier one
            other = int(rng.integers(b))
            most = int(min(lengths[b], lengths[other])) // page  # full pages
            shared = int(rng.integers(most + 1))
            table[b, :shared] = table[other, :shared]
    if kind == "common" and len(lengths):
        shared = int(rng.integers(1, int(lengths.min()) // page + 1))
        table[:, :shared] = table[0, :shared]
    return table.astype(rng.choice([np.int32, np.int64])), pages


def caches(shape: tuple[int, ...], d_v: int, dtype: np.dtype, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Caches of keys (pages, page, heads, d) and of values, full of NaN. layout "alias": values are columns of keys."""
    *lead, d = shape

    def empty(*size: int) -> np.ndarray:
        return np.full(size, np.nan, dtype)

    if layout == "alias":
        k = empty(*lead, d)
        first = (d - d_v) // 2
        return k, k[..., first : first + d_v]
    if layout == "packed":
        both = empty(*lead, d + d_v)
        return both[..., :d], both[..., d:]
    if layout == "heads outside":
        return tuple(empty(lead[2], *lead[:2], width).transpose(1, 2, 0, 3) for width in (d, d_v))  # pyright: ignore
    if layout == "columns outside":
        return tuple(empty(lead[0], width, *lead[1:]).transpose(0, 2, 3, 1) for width in (d, d_v))  # pyright: ignore
    return tuple(laid(empty(*lead, width), layout) for width in (d, d_v))  # pyright: ignore


def places(case: PagedCase) -> np.ndarray:
    """Whether each row of each page holds a key: (pages, page)."""
    held = np.zeros(case.k_pages.shape[:2], bool)
    page = case.k_pages.shape[1]
    for b, length in enumerate(case.lengths_k):
        for j in range(length):
            held[case.page_table[b, j // page], j % page] = True
    return held


@st.composite
def paged_cases(draw: st.DrawFn, max_keys: int = 100) -> PagedCase:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    batch, page = draw(st.sampled_from([2, 3, 1, 3, 4, 2, 3, 0])), draw(PAGE_SIZES)
    lengths = rng.integers(0, draw(st.sampled_from([8, 40, max_keys])) + 1, batch)
    lengths[rng.random(batch) < 0.2] = 0
    if draw(st.sampled_from([False, False, True])):
        lengths = lengths // page * page  # full pages only
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 5, 8]))
    d, d_v = draw(st.integers(1, 9) | st.sampled_from([16, 17, 33])), draw(st.integers(1, 9) | st.just(16))
    layout = draw(st.sampled_from(LAYOUTS))
    if draw(st.sampled_from([False, False, False, True])):
        kv_heads, group, layout, d_v = 1, draw(st.sampled_from([1, 4, 7])), "alias", min(d, d_v)
    heads = kv_heads * group
    kind = draw(st.sampled_from(["distinct", "repeated", "shared", "common"]))
    if kind == "common":
        lengths = np.maximum(lengths, page)
    if kind in ("shared", "common") and draw(st.booleans()):
        lengths = lengths + 150  # enough shared keys to be read once for several sequences
    table, pages = table_of(rng, lengths, page, kind)
    n_q = draw(st.sampled_from([0, 1, 1, 1, 2, 4, 5]))
    packed = draw(st.sampled_from([False, True, False]))
    counts = rng.choice([0, 1, 1, 4, n_q], batch) if packed else np.full(batch, n_q)
    total = int(counts.sum())

    def values(*shape: int, of: np.dtype = dtype, times: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * times).astype(of)

    q = values(total, heads, d) if packed else values(batch, n_q, heads, d)
    q = laid(q, draw(st.sampled_from(["plain", "plain", "transposed", "heads inside", "columns apart", "rows apart"])))
    k_pages, v_pages = caches((pages, page, kv_heads, d), d_v, dtype, layout)
    starts = np.append(0, np.cumsum(counts)) if packed else None
    case = PagedCase(q, k_pages, v_pages, table, lengths, starts, layout=layout)
    held = places(case)
    for cache in (k_pages, v_pages):  # aliased values are written twice
        cache[held] = values(int(held.sum()), *cache.shape[2:])
    case.options = options = {}
    options["scale"] = draw(st.sampled_from([None, None, 0.3, -0.4]))
    options["softcap"] = draw(st.sampled_from([None, None, 2.0]))
    options["mask"] = draw(
        st.none()
        | st.just(rb.Mask.full())
        | st.just(rb.Mask.causal("bottom-right"))
        | st.builds(
            rb.Mask.sliding_window,
            st.none() | st.integers(0, 40),
            st.none() | st.integers(0, 2),
            st.just("bottom-right"),
        )
        | st.just("tree")
    )
    if options["mask"] == "tree":
        newest = draw(st.sampled_from([0, 1, 3, 8, 40]))
        shape = [1 if draw(st.sampled_from([False, False, True])) else n for n in q.shape[:-2]]
        options["mask"] = rng.random((*shape, newest)) < 0.6
    if draw(st.sampled_from([False, False, True])):
        options["sinks"] = np.where(rng.random(heads) < 0.3, -np.inf, rng.standard_normal(heads)).astype(np.float32)
    if draw(st.sampled_from([False, False, True])):
        shape = draw(st.sampled_from([(heads,), (batch, heads)]))
        options["alibi"] = rng.random(shape).astype(draw(st.sampled_from([np.float32, np.float16])))
    if not packed and batch and draw(st.sampled_from([False, True])):
        options["bias"] = drawn_bias(draw, rng, case, (batch, heads, n_q, int(lengths.max())))
    options["prefix_pages"] = draw(st.sampled_from([None, "all", 0]))
    if options["prefix_pages"] == "all":
        options["prefix_pages"] = common_pages(case)
    return case


def drawn_bias(draw: st.DrawFn, rng: np.random.Generator, case: PagedCase, full: tuple[int, ...]) -> np.ndarray:
    """A bias that broadcasts to `full`, with NaN for keys that a sequence does not have."""
    broadcast = rng.random(4) < 0.3
    shape = tuple(1 if is_one else size for is_one, size in zip(broadcast, full, strict=True))
    shape = shape[draw(st.sampled_from([0, 0, 1, 2, 3])) :]
    kind = draw(st.sampled_from(["bool", "float32", case.q.dtype.name]))
    if kind == "bool":
        return rng.random(shape) < 0.7
    bias = rng.standard_normal(shape).astype(DTYPES["float32" if kind == "float32" else case.q.dtype.name])
    bias[rng.random(shape) < 0.1] = -np.inf
    if len(shape) == 4 and shape[0] == full[0] and shape[3] == full[3]:
        for b, length in enumerate(case.lengths_k):
            bias[b, ..., length:] = np.nan
    return bias


def common_pages(case: PagedCase) -> int:
    """The number of full leading pages that all sequences share."""
    if not len(case.lengths_k):
        return 0
    most = int(case.lengths_k.min()) // case.k_pages.shape[1]
    same = (case.page_table[:, :most] == case.page_table[:1, :most]).all(0)
    return int(np.argmin(same)) if not same.all() else most


def moved(case: PagedCase, rng: np.random.Generator) -> PagedCase:
    """The same call with its pages in another order, among more pages."""
    pages = case.k_pages.shape[0]
    to = rng.permutation(pages + 3)[:pages]
    table = case.page_table.copy()
    known = (table >= 0) & (table < pages)  # garbage stays
    table[known] = to[table[known]]
    k, v = caches((pages + 3, *case.k_pages.shape[1:]), case.v_pages.shape[-1], case.q.dtype, case.layout)
    k[to], v[to] = case.k_pages, case.v_pages
    return replace(case, k_pages=k, v_pages=v, page_table=table)


def alone(case: PagedCase, sequence: int) -> PagedCase:
    """The call of one sequence of the batch."""
    own = slice(sequence, sequence + 1)
    first, end = case.starts[sequence : sequence + 2]
    length = int(case.lengths_k[sequence])
    options = dict(case.options)
    for name in ("alibi", "bias", "mask"):
        x = options.get(name)
        if isinstance(x, np.ndarray):
            options[name] = _row_of(name, x, case, sequence)
    if isinstance(options.get("bias"), np.ndarray) and options["bias"].shape[-1] != 1:
        options["bias"] = options["bias"][..., :length]
    if case.cu_seqlens_q is None:
        q, starts = case.q[own], None
    else:
        q, starts = case.q[first:end], np.array([0, end - first])
    return replace(
        case,
        q=q,
        page_table=case.page_table[own],
        lengths_k=case.lengths_k[own],
        cu_seqlens_q=starts,
        options=options,
    )


def _row_of(name: str, x: np.ndarray, case: PagedCase, sequence: int) -> np.ndarray:
    """The part of an array option that belongs to one sequence."""
    batch = len(case.lengths_k)
    if name == "mask" and case.cu_seqlens_q is not None:
        return x if len(x) == 1 else x[case.starts[sequence] : case.starts[sequence + 1]]
    dimensions = {"alibi": 2, "bias": 4, "mask": 3}[name]
    return x[sequence : sequence + 1] if x.ndim == dimensions and len(x) == batch else x
