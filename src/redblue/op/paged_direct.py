"""attention_paged and append_paged on arrays and tensors that have values."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.dtypes import sum_dtype
from redblue.base.errors import RedblueError
from redblue.kernels.options import Options
from redblue.masks import Mask
from redblue.op import api, paged_cpu
from redblue.op.paged_call import PagedCall, check_cache, packed_rows, type_name
from redblue.op.paged_writes import apart, are_columns, check_apart, check_places, check_writable
from redblue.op.pages import Sequences, lengths_of, table_of


def computed(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    lengths_k: Any,
    cu_seqlens_q: Any,
    prefix_pages: Any,
    options: Options,
) -> tuple[Any, Any]:
    """The results of `attention_paged`, contiguous, on arrays or tensors that have values."""
    call = PagedCall.checked(q, k_pages, v_pages, page_table, lengths_k, cu_seqlens_q, prefix_pages, options)
    return paged_cpu.attend(call) if _on_cpu(call) else _on_gpu(call, page_table) or _gathered(call)


def appended(
    k: Any, v: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths_k: Any, cu_seqlens: Any
) -> np.ndarray:
    """`append_paged` on arrays or tensors that have values."""
    k, v, k_pages, v_pages = check_cache({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
    check_writable("k_pages", k_pages)
    check_writable("v_pages", v_pages)
    starts, flat = packed_rows("k", k, cu_seqlens, "cu_seqlens")
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise RedblueError(f"v must have the rows and heads of k, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}")
    for name, new, cache in (("k", k, k_pages), ("v", v, v_pages)):
        if tuple(new.shape[-2:]) != tuple(cache.shape[2:]):
            raise RedblueError(
                f"{name} must have the heads and width of {name}_pages, {tuple(cache.shape[2:])}, "
                f"got {tuple(new.shape[-2:])}"
            )
    one = are_columns(k, v, k_pages, v_pages)
    lengths = lengths_of("lengths_k", lengths_k, len(starts) - 1)
    ends = lengths + np.diff(starts)
    page = int(k_pages.shape[1])
    table = table_of(page_table, ends, page, int(k_pages.shape[0]), ("page_table", "the new lengths"))
    sequences = Sequences(starts, ends, table, page)
    parts = [sequences.places(b, int(lengths[b]), int(ends[b])) for b in range(len(sequences))]
    if not parts:
        return ends
    pages, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
    check_places(pages, rows, sequences, lengths)
    if not one:
        check_apart(k_pages, v_pages, pages, rows, sequences, lengths)
    k, v = (apart(x, (k_pages, v_pages)) for x in (k, v))
    for new, cache in ((k, k_pages),) if one else ((k, k_pages), (v, v_pages)):
        new = new.reshape(flat, *new.shape[-2:])
        if api.is_torch(cache):
            import torch

            at = tuple(torch.from_numpy(x).to(cache.device) for x in (pages, rows))
            cache[at] = new
        else:
            cache[pages, rows] = new
    return ends


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
            own["bias"] = bias[b, ..., :n_k]
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
