"""Attention on caches of keys and values that lie in pages, for generation: no gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from redblue.base.dtypes import sum_dtype
from redblue.base.errors import RedblueError
from redblue.kernels.options import documented, options_of
from redblue.masks import Mask
from redblue.op import api, paged_cpu
from redblue.op.checks import check_flag
from redblue.op.paged_call import PagedCall, check_cache, packed_rows, type_name
from redblue.op.pages import Sequences, lengths_of, table_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PagedArguments(TypedDict, total=False):
    """Keyword arguments of `attention_paged`: the options of generation."""

    mask: Any
    scale: float | None
    softcap: float | None
    bias: Any
    sinks: Any
    alibi: Any


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
    and rows of pages beyond them are not read. PyTorch tensors or arrays, all of one type.

    The queries of a sequence belong to its newest keys: the last query stands at the last key. mask: None, causal from
    there; Mask.full(); Mask.causal or Mask.sliding_window with align="bottom-right"; or a tree over the newest keys, a
    boolean array (n_q, newest), (B, n_q, newest) or, packed, (total_q, newest): True where a query attends one of the
    newest keys. It attends all keys before these. alibi is (H,) or (B, H). bias broadcasts to (B, H, n_q, keys of the
    longest sequence), and needs q of four dimensions. prefix_pages: so many first pages, which all sequences share, are
    read once for all of them; None finds the prefixes that sequences share; 0 shares none.

    Returns out, of q's shape with d_v in place of d, or (out, lse), with lse of out's shape without d_v. Raises
    RedblueError, naming the argument, for a value that it cannot take, and for tensors that require gradients.
    """
    call = PagedCall.checked(
        q, k_pages, v_pages, page_table, lengths_k, cu_seqlens_q, prefix_pages, options_of("attention_paged", options)
    )
    check_flag("return_lse", return_lse)
    out, lse = paged_cpu.attend(call) if _on_cpu(call) else _on_gpu(call, page_table) or _gathered(call)
    return (out, lse) if return_lse else out


def append_paged(
    k: Any, v: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths_k: Any, cu_seqlens: Any = None
) -> np.ndarray:
    """Write new keys and values behind those of each sequence, in place; return the new lengths (B,), int64.

    k (B, n, H_kv, d), v (B, n, H_kv, d_v), or packed (total, H_kv, d) with cu_seqlens, the cumulative numbers of new
    keys. The others are as in `attention_paged`; lengths_k is that before. v_pages may be a slice of k_pages: then v
    must be that slice of k. Nothing is written if an argument is refused: a table too short, a page that is not there,
    or a row of a page that two sequences would write.
    """
    check_cache({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
    starts, flat = packed_rows("k", k, cu_seqlens, "cu_seqlens")
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise RedblueError(f"v must have the rows and heads of k, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}")
    for name, new, cache in (("k", k, k_pages), ("v", v, v_pages)):
        if tuple(new.shape[-2:]) != tuple(cache.shape[2:]):
            raise RedblueError(
                f"{name} must have the heads and width of {name}_pages, {tuple(cache.shape[2:])}, "
                f"got {tuple(new.shape[-2:])}"
            )
    lengths = lengths_of("lengths_k", lengths_k, len(starts) - 1)
    ends = lengths + np.diff(starts)
    page = int(k_pages.shape[1])
    table = table_of(page_table, ends, page, int(k_pages.shape[0]), ("page_table", "the new lengths"))
    sequences = Sequences(starts, ends, table, page)
    parts = [sequences.places(b, int(lengths[b]), int(ends[b])) for b in range(len(sequences))]
    if not parts:
        return ends
    pages, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
    _check_distinct(pages * page + rows, starts)
    for new, cache in ((k, k_pages), (v, v_pages)):
        new = new.reshape(flat, *new.shape[-2:])
        if api.is_torch(cache):
            import torch

            at = tuple(torch.from_numpy(x).to(cache.device) for x in (pages, rows))
            cache[at] = new
        else:
            cache[pages, rows] = new
    return ends


def _check_distinct(places: np.ndarray, starts: np.ndarray) -> None:
    """Raise RedblueError if two new keys would be written to one place."""
    order = np.argsort(places, kind="stable")
    same = np.flatnonzero(np.diff(places[order]) == 0)
    if len(same):
        a, b = (int(np.searchsorted(starts, x, side="right")) - 1 for x in order[same[0] : same[0] + 2])
        raise RedblueError(f"page_table must give new keys places of their own, but sequences {a} and {b} share one")


def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """Attention on all keys, from the results on two parts of them: (out, lse).

    out_a, out_b: (..., d_v), of one shape and type. lse_a, lse_b: their log-sum-exps, of out's shape without d_v.
    (`attention_paged` gives this shape; transpose the lse of `attention` and `attention_varlen`, or their out.)
    A part without keys has out 0 and lse -inf. Sinks may be in one part only.
    """
    arrays = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    kinds = {api.is_torch(x) for x in arrays.values()}
    if len(kinds) > 1:
        raise RedblueError("out_a, lse_a, out_b and lse_b must be PyTorch tensors, or all arrays")
    on_torch = kinds.pop()
    if not on_torch:
        out_a, lse_a, out_b, lse_b = (api.as_numpy(name, x) for name, x in arrays.items())
    if tuple(out_a.shape) != tuple(out_b.shape) or out_a.dtype != out_b.dtype or not len(out_a.shape):
        both = f"{tuple(out_a.shape)} of {out_a.dtype} and {tuple(out_b.shape)} of {out_b.dtype}"
        raise RedblueError(f"out_a and out_b must be (..., d_v), of one shape and type, got {both}")
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if tuple(lse.shape) != tuple(out_a.shape[:-1]):
            wanted = f"{tuple(out_a.shape[:-1])}, the shape of out_a without d_v"
            raise RedblueError(f"{name} must be {wanted}, got {tuple(lse.shape)}: is it transposed?")
    return (_merged_tensors if on_torch else _merged_arrays)(out_a, lse_a, out_b, lse_b)


def _merged_arrays(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[np.ndarray, np.ndarray]:
    wide = np.result_type(lse_a, lse_b)
    lse = np.logaddexp(lse_a, lse_b)
    with np.errstate(invalid="ignore"):
        shares = [np.where(np.isneginf(x), 0, np.exp(x - lse)).astype(wide) for x in (lse_a, lse_b)]
    a, b = (x.astype(wide) * share[..., None] for x, share in zip((out_a, out_b), shares, strict=True))
    return (a + b).astype(out_a.dtype), lse


def _merged_tensors(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    import torch

    lse = torch.logaddexp(lse_a, lse_b)
    shares = [torch.where(torch.isneginf(x), 0.0, torch.exp(x - lse)) for x in (lse_a, lse_b)]
    a, b = (x * share[..., None] for x, share in zip((out_a, out_b), shares, strict=True))
    return (a + b).to(out_a.dtype), lse


def _on_cpu(call: PagedCall) -> bool:
    """Whether the CPU's kernels compute the call."""
    if not api.is_torch(call.q):
        return True
    from redblue.op.pytorch import ops

    return call.q.is_cpu and ops.substitute() is None


def _on_gpu(call: PagedCall, page_table: Any) -> tuple[Any, Any] | None:
    """The results of the kernels for GPUs; None where they do not compute the call. page_table: the caller's."""
    if call.q.device.type not in ("cuda", "cpu"):
        return None
    from redblue.op.pytorch import ops

    ops.gpu_kernels()
    from redblue.op.pytorch import paged_gpu

    return paged_gpu.attend(call, page_table)


def _gathered(call: PagedCall) -> tuple[Any, Any]:
    """The results, with the keys and values of each sequence copied out of their pages."""
    sequences, options = call.sequences, call.options
    lead = call.shape[:-1]
    outs, lses = [], []
    for b in range(len(sequences)):
        q = call.q[sequences.starts[b] : sequences.starts[b + 1]]
        n_q, n_k = len(q), int(sequences.lengths[b])
        pages, rows = sequences.places(b, 0, n_k)
        if api.is_torch(call.k):
            import torch

            pages, rows = (torch.from_numpy(x).to(call.k.device) for x in (pages, rows))
        k, v = call.k[pages, rows], call.v[pages, rows]
        own: dict[str, Any] = {"mask": options.mask, "scale": options.scale, "softcap": options.softcap}
        own["sinks"] = options.sinks
        if options.alibi is not None:
            own["alibi"] = options.alibi[b] if len(options.alibi.shape) == 2 else options.alibi
        if options.bias is not None:
            bias = options.bias
            own["bias"] = bias[min(b, len(bias) - 1)][..., :n_k] if len(bias.shape) == 4 else bias[..., :n_k]
        if call.tree is not None:
            tree = call.tree[sequences.starts[b] : sequences.starts[b + 1]]
            newest = min(tree.shape[1], n_k)
            dense = np.ones((n_q, n_k), bool)
            dense[:, n_k - newest :] = tree[:, tree.shape[1] - newest :]
            own["mask"] = Mask.from_dense(dense) if dense.size else Mask.full()
        out, lse = api.attention(*(x.swapaxes(0, 1)[None] for x in (q, k, v)), return_lse=True, **own)
        outs.append(out[0].swapaxes(0, 1))
        lses.append(lse[0].swapaxes(0, 1))
    if api.is_torch(call.q):
        import torch

        if not outs:
            return call.q.new_zeros(call.shape), call.q.new_zeros(
                lead, dtype=getattr(torch, sum_dtype(type_name(call.q)))
            )
        return torch.cat(outs).reshape(call.shape), torch.cat(lses).reshape(lead)
    if not outs:
        return np.zeros(call.shape, call.q.dtype), np.zeros(lead, sum_dtype(type_name(call.q)))
    return np.concatenate(outs).reshape(call.shape), np.concatenate(lses).reshape(lead)
