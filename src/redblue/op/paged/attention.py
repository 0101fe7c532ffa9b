"""Attention on caches of keys and values that lie in pages, for generation: no gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from redblue.base.dtypes import SUM_DTYPES, dtype_name
from redblue.base.errors import RedblueError
from redblue.kernels.options import PagedArguments
from redblue.op import api
from redblue.op.checks import check_dtypes, check_flag
from redblue.op.paged import direct
from redblue.op.signatures import documented, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@documented(PagedArguments)
def attention_paged(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    lengths_k: Any,
    cu_seqlens_q: Any = None,
    *,
    prefix_pages: int | None = None,
    return_lse: bool = False,
    **options: Unpack[PagedArguments],
) -> Any:
    """Attention of each sequence's queries on its keys and values, which lie in pages. There is no backward pass.

    q: (B, n_q, H, d), or packed (total_q, H, d) with cu_seqlens_q, the cumulative numbers of queries, (B + 1,).
    k_pages (pages, page, H_kv, d), v_pages (pages, page, H_kv, d_v): of any strides, so that other layouts are views;
    v_pages may be a slice of k_pages. page_table: (B, most pages of a sequence), whole numbers: key j of sequence b
    lies in page page_table[b, j // page], row j % page. lengths_k: (B,), keys of each sequence. Entries of the table
    and rows of pages beyond these lengths are not read. PyTorch tensors or arrays, all of one type.

    The queries of a sequence belong to its newest keys: the last query has the position of the last key. mask: None for
    a causal mask by these positions; Mask.full(); Mask.causal or Mask.sliding_window with align="bottom-right"; or a
    tree over the newest keys, a boolean array (n_q, newest), (B, n_q, newest) or, packed, (total_q, newest): True where
    a query attends one of the newest keys. With a tree, queries attend all keys before these. alibi is (H,) or (B, H).
    bias broadcasts to (B, H, n_q, keys of the longest sequence), and needs q of four dimensions. prefix_pages: number
    of first pages that all sequences share and that are read once for all of them; None finds shared prefixes; 0 shares
    none.

    Returns out, of q's shape with d_v in place of d, or (out, lse), with lse of out's shape without d_v. Raises
    RedblueError, naming the argument, for an unsupported value, and for tensors that require gradients.
    Source: keys in pages are PagedAttention, Kwon et al., SOSP 2023 (arXiv 2309.06180).
    """
    check_flag("return_lse", return_lse)
    tensors = q, k_pages, v_pages, page_table, lengths_k, cu_seqlens_q, prefix_pages
    record = options_of("attention_paged", options, PagedArguments)
    if api.is_torch(q):
        from redblue.op.pytorch.paged import ops

        if ops.observed(q, k_pages, v_pages):
            out, lse = ops.attention_paged(*tensors, record)
            return (out, lse) if return_lse else out
    out, lse = direct.computed(*tensors, record, return_lse)
    return (out, lse) if return_lse else out


def append_paged(
    k: Any, v: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths_k: Any, cu_seqlens: Any = None
) -> np.ndarray:
    """Append new keys and values to each sequence's cache, in place; return the new lengths (B,), int64.

    k (B, n, H_kv, d), v (B, n, H_kv, d_v), or packed (total, H_kv, d) with cu_seqlens, the cumulative numbers of new
    keys. The other arguments are as in `attention_paged`; lengths_k: the lengths before the call. v_pages may be a
    slice of k_pages: then v must be the same slice of k.

    Raises RedblueError, naming the argument, and then writes nothing: for a table that is too short, for a page that
    does not exist, and for a row of a page that two sequences would write or that already holds a key.
    """
    run = direct.appended
    if api.is_torch(k):
        from redblue.op.pytorch.paged import ops

        if ops.observed(k, v, k_pages, v_pages):
            run = ops.append_paged
    return run(k, v, k_pages, v_pages, page_table, lengths_k, cu_seqlens)


def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """Attention on all keys, from the results on two parts of them: (out, lse).

    out_a, out_b: (..., d_v), of one shape and type. lse_a, lse_b: their log-sum-exps, of out's shape without d_v.
    `attention` and `attention_paged` return lse in this shape; the lse of `attention_varlen` must be transposed. The
    results of `attention` have heads before queries, the results of the other two functions after queries.
    A part without keys has out 0 and lse -inf. Sinks may be in one part only.

    Returns out, of the shape and type of out_a, and lse. With a = exp(lse_a) and b = exp(lse_b), out is
    (a out_a + b out_b) / (a + b), and lse is log(a + b). Raises RedblueError, naming the argument, if the parts do not
    fit each other.
    """
    arrays = _checked_parts({"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b})
    return (_merged_tensors if api.is_torch(out_a) else _merged_arrays)(*arrays)


def _checked_parts(arrays: dict[str, Any]) -> list[Any]:
    """The arrays of two parts. Raises RedblueError, naming the argument, unless they fit each other."""
    if len({api.is_torch(x) for x in arrays.values()}) > 1:
        types = ", ".join(type(x).__name__ for x in arrays.values())
        raise RedblueError(f"out_a, lse_a, out_b and lse_b must be PyTorch tensors, or all arrays, got {types}")
    arrays = {name: x if api.is_torch(x) else api.as_numpy(name, x) for name, x in arrays.items()}
    out_a, lse_a, out_b, lse_b = arrays.values()
    if tuple(out_a.shape) != tuple(out_b.shape) or out_a.dtype != out_b.dtype or not len(out_a.shape):
        both = f"{tuple(out_a.shape)} of {out_a.dtype} and {tuple(out_b.shape)} of {out_b.dtype}"
        raise RedblueError(f"out_a and out_b must be (..., d_v), of one shape and type, got {both}")
    check_dtypes({name: dtype_name(arrays[name].dtype) for name in ("out_a", "out_b")})
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if tuple(lse.shape) != tuple(out_a.shape[:-1]):
            wanted = f"{tuple(out_a.shape[:-1])}, the shape of out_a without d_v"
            raise RedblueError(f"{name} must be {wanted}, got {tuple(lse.shape)}: is it transposed?")
        if dtype_name(lse.dtype) not in SUM_DTYPES or lse.dtype != lse_a.dtype:
            raise RedblueError(
                f"{name} must have the type of the other lse, {' or '.join(SUM_DTYPES)}, got {dtype_name(lse.dtype)}"
            )
    devices = {str(getattr(x, "device", "cpu")) for x in arrays.values()}
    if len(devices) > 1:
        raise RedblueError(f"{', '.join(arrays)} must be on one device, got {', '.join(sorted(devices))}")
    return list(arrays.values())


def _merged_arrays(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = []
    with np.errstate(invalid="ignore"):
        lse = np.logaddexp(lse_a, lse_b)
        for out, own in ((out_a, lse_a), (out_b, lse_b)):
            weighted = out.astype(lse.dtype) * np.exp(own - lse)[..., None]
            parts.append(np.where(np.isneginf(own)[..., None], 0, weighted))
    return (parts[0] + parts[1]).astype(out_a.dtype), lse


def _merged_tensors(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    import torch

    lse = torch.logaddexp(lse_a, lse_b)
    a, b = (
        torch.where(torch.isneginf(own)[..., None], 0.0, out * torch.exp(own - lse)[..., None])
        for out, own in ((out_a, lse_a), (out_b, lse_b))
    )
    return (a + b).to(out_a.dtype), lse
