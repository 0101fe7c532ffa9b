"""The checked arguments of a paged call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.kernels.options import Options, checked
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op import api
from redblue.op.checks import check_dtypes, check_shapes, check_widths_on_cpu
from redblue.op.packed import lengths_between
from redblue.op.paged.known_tables import known
from redblue.op.paged.options import check_no_gradient, expanded
from redblue.op.paged.pages import Sequences, checked_lengths, on_cpu, table_of, whole_numbers

CAUSAL = Mask.causal(align="bottom-right")


class PagedCall(NamedTuple):
    """A checked call. q (total_q, H, d) is packed. shape: the shape of the output.

    sizes: the sizes that options must fit. lead is (B,), n_q is 1 if the caller's q is packed, and n_k is the number of
    keys of the longest sequence. tree: None, or a boolean array (total_q, newest). Options that are arrays are expanded
    (`expanded`). prefix: number of first pages that all sequences share; None: the core looks for shared pages.
    """

    q: Any
    k: Any
    v: Any
    sequences: Sequences
    sizes: Sizes
    options: Options
    tree: np.ndarray | None
    prefix: int | None
    shape: tuple[int, ...]

    @staticmethod
    def checked(
        q: Any, k: Any, v: Any, page_table: Any, lengths_k: Any, cu_seqlens_q: Any, prefix: Any, options: Options
    ) -> PagedCall:
        """Check the arguments. Raises RedblueError, which names the argument, if they do not fit each other."""
        q, k, v = check_cache({"q": q, "k_pages": k, "v_pages": v})
        check_heads(q, k)
        page, pages = int(k.shape[1]), int(k.shape[0])

        def sequences_of() -> Sequences:
            starts, _ = packed_rows("q", q, cu_seqlens_q, "cu_seqlens_q")
            lengths = checked_lengths("lengths_k", lengths_k, len(starts) - 1)
            return Sequences(
                starts, lengths, table_of(page_table, lengths, page, pages, ("page_table", "lengths_k")), page
            )

        sequences = known((page_table, lengths_k, cu_seqlens_q), (tuple(q.shape[:-2]), page, pages), sequences_of)
        mask, tree = _mask_and_tree(options.mask, q, sequences.total)
        options = checked(options._replace(mask=mask))
        for name, rules, _ in options.present_arrays():
            if rules.pairs and len(q.shape) != 4:
                raise RedblueError(f"{name} needs q of four dimensions, (B, n_q, H, d): packed sequences have none")
        sizes = _sizes(len(sequences), sequences.longest, tuple(q.shape), tuple(k.shape), tuple(v.shape))
        if not getattr(q, "is_cuda", False):
            check_widths_on_cpu(sizes)
        options = expanded(options, q, sizes)
        if prefix is not None:
            prefix = whole_number("prefix_pages", prefix, 0)
            _check_prefix(prefix, sequences)
        shape = (*q.shape[:-1], v.shape[-1])
        packed = q if len(q.shape) == 3 else q.reshape(sequences.total, *q.shape[-2:])
        return PagedCall(packed, k, v, sequences, sizes, options, tree, prefix, shape)


@lru_cache(maxsize=1024)
def _sizes(batch: int, longest: int, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Sizes:
    """`PagedCall.sizes`. q, k, v: the shapes of the caller's arrays. Raises RedblueError if the shapes do not fit."""
    (_, _, kv_heads, d), d_v = k, v[-1]
    n_q = q[1] if len(q) == 4 else 1
    return check_shapes((batch, q[-2], n_q, q[-1]), (batch, kv_heads, longest, d), (batch, kv_heads, longest, d_v))


def check_cache(arrays: Mapping[str, Any]) -> list[Any]:
    """The arrays; arrays of other libraries are converted to NumPy.

    Raises RedblueError unless all are tensors or all are arrays, of one type and device, dense and without gradients.
    Also raises RedblueError for arrays whose shapes do not fit each other.
    """
    arrays = {name: x if api.is_torch(x) else api.as_numpy(name, x) for name, x in arrays.items()}
    for name, x in arrays.items():
        check_no_gradient(name, x)
        if api.is_torch(x) and (x.is_nested or str(x.layout) != "torch.strided"):
            raise RedblueError(f"{name} must be dense, got a tensor of layout {x.layout}")
    forms = tuple((name, x.shape, x.dtype, getattr(x, "device", "cpu")) for name, x in arrays.items())
    try:
        _check_forms(forms)
    except TypeError:  # symbolic sizes of a graph cannot be hashed
        _check_forms.__wrapped__(forms)
    return list(arrays.values())


@lru_cache(maxsize=1024)
def _check_forms(forms: tuple[tuple[str, Any, Any, Any], ...]) -> None:
    """Raise RedblueError unless arrays of these names, shapes, types and devices fit each other."""
    shapes = {name: tuple(shape) for name, shape, _, _ in forms}
    names = ", ".join(shapes)
    for name, shape in shapes.items():
        if name.endswith("_pages") and len(shape) != 4:
            raise RedblueError(f"{name} must be (pages, page, heads, width), got shape {shape}")
        if name in ("q", "k", "v") and len(shape) not in (3, 4):
            raise RedblueError(
                f"{name} must be (B, n, heads, width) or packed (total, heads, width), got shape {shape}"
            )
    if len({isinstance(dtype, np.dtype) for _, _, dtype, _ in forms}) > 1:
        arrays = ", ".join(f"{name} is an array" for name, _, dtype, _ in forms if isinstance(dtype, np.dtype))
        raise RedblueError(f"{names} must all be PyTorch tensors, or all be arrays; only {arrays}: convert the others")
    check_dtypes({name: dtype_name(dtype) for name, _, dtype, _ in forms})
    devices = {str(device) for *_, device in forms}
    if len(devices) > 1:
        raise RedblueError(f"{names} must be on one device, got {', '.join(sorted(devices))}")
    k, v = (shapes[name][:3] for name in ("k_pages", "v_pages"))
    if k != v:
        raise RedblueError(f"v_pages must have the pages, rows and heads of k_pages, {k}, got {v}")


def check_heads(q: Any, k_pages: Any) -> None:
    """Raise RedblueError unless the heads of q and of the keys fit together."""
    (heads, d), (kv_heads, width) = q.shape[-2:], k_pages.shape[-2:]
    if d != width:
        raise RedblueError(f"head dimension of k_pages ({width}) must equal that of q ({d})")
    if heads and (not kv_heads or heads % kv_heads):
        raise RedblueError(f"heads of q ({heads}) must be a multiple of the heads of k_pages ({kv_heads})")


def packed_rows(name: str, x: Any, cumulative: Any, of: str) -> tuple[np.ndarray, int]:
    """The first packed row of each sequence, and the number of rows."""
    if len(x.shape) == 4:
        if cumulative is not None:
            raise RedblueError(f"{of} is for packed {name} (total, heads, width), got {name} of shape {tuple(x.shape)}")
        batch, n = (int(size) for size in x.shape[:2])
        return np.arange(batch + 1) * n, batch * n
    if cumulative is None:
        raise RedblueError(f"packed {name} {tuple(x.shape)} needs {of}: give it, or give (B, n, heads, width)")
    starts, total = whole_numbers(of, cumulative), int(x.shape[0])
    lengths_between(of, starts, name, total)
    return starts, total


def window_of(mask: Mask | None) -> Mask:
    """The window, counted from the last query and key, of a user's mask; causal for None."""
    if mask is None:
        return CAUSAL
    rule = mask.rule
    if not isinstance(rule, Window):
        raise RedblueError(f"mask must be a window or a boolean array over the newest keys, got {mask!r}")
    if not rule.is_full and rule.align != "bottom-right":
        raise RedblueError(f'mask must count from the last query and key: give align="bottom-right", got {mask!r}')
    return mask


def _mask_and_tree(mask: Any, q: Any, total: int) -> tuple[Mask, np.ndarray | None]:
    """The mask of each sequence, counted from its last query and key, and the tree over its newest keys."""
    if mask is None or isinstance(mask, Mask):
        return window_of(mask), None
    mask = on_cpu("mask", mask)
    try:
        tree = np.asarray(mask)
    except ValueError:  # a ragged list
        raise RedblueError("mask must be a Mask or a boolean array (n_q, newest keys), got a ragged list") from None
    lead = tuple(q.shape[:-2])
    if tree.dtype != np.bool_ or tree.ndim < 2:
        raise RedblueError(f"mask must be a Mask or a boolean array (n_q, newest keys), got {tree.dtype} {tree.shape}")
    wanted = (*lead, tree.shape[-1])
    if tree.ndim > len(wanted) or any(a not in (b, 1) for a, b in zip(tree.shape[::-1], wanted[::-1], strict=False)):
        raise RedblueError(f"mask must broadcast to {(*lead, 'newest keys')}, got {tree.shape}")
    return Mask.full(), np.ascontiguousarray(np.broadcast_to(tree, wanted).reshape(total, tree.shape[-1]))


def _check_prefix(prefix: int, sequences: Sequences) -> None:
    """Raise RedblueError unless all sequences share this many full first pages."""
    if not prefix or not len(sequences):
        return
    shortest = int(sequences.lengths.min())
    if prefix * sequences.page > shortest:
        raise RedblueError(
            f"prefix_pages must be at most the full pages of every sequence, {shortest // max(1, sequences.page)}, "
            f"got {prefix}"
        )
    first = sequences.table[:, :prefix]
    differs = (first != first[0]).any(1)
    if differs.any():
        raise RedblueError(
            f"prefix_pages says that all sequences share their first {prefix} pages, but sequence "
            f"{int(differs.argmax())} has others than sequence 0: give the number of shared pages, or None to find them"
        )
