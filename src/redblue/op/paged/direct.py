"""attention_paged and append_paged on arrays and on real tensors (neither fake nor traced)."""

from __future__ import annotations

from typing import Any

import numpy as np

from redblue.base.dtypes import dtype_name, sum_dtype
from redblue.kernels.options import Options
from redblue.masks import Mask
from redblue.op import api
from redblue.op.paged import cpu
from redblue.op.paged.append import Places
from redblue.op.paged.call import PagedCall, check_cache
from redblue.op.paged.forms import bytes_into_row, distance_within, form_of, may_be_cached
from redblue.op.paged.known_tables import known
from redblue.op.paged.options import of_sequence


def computed(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    lengths_k: Any,
    cu_seqlens_q: Any,
    prefix_pages: Any,
    options: Options,
    wants_lse: bool = True,
) -> tuple[Any, Any]:
    """The results of `attention_paged`, contiguous, on arrays or real tensors.

    wants_lse: if False, the second result may be None.
    """

    def checked() -> PagedCall:
        return PagedCall.checked(q, k_pages, v_pages, page_table, lengths_k, cu_seqlens_q, prefix_pages, options)

    form = form_of(q, k_pages, v_pages)
    if form is None or not may_be_cached(prefix_pages, options):
        call = checked()
        if not _on_cpu(call):
            return _on_gpu(call, page_table) or _gathered(call)
        return cpu.run(cpu.ready(call, call.q), call.q, call.k, call.v)[:2]
    facts = form, bytes_into_row(k_pages, v_pages), prefix_pages, options
    made = known((page_table, lengths_k, cu_seqlens_q), facts, lambda: cpu.ready(checked(), q))
    return cpu.run(made, q, k_pages, v_pages, wants_lse)[:2]


def appended(
    k: Any, v: Any, k_pages: Any, v_pages: Any, page_table: Any, lengths_k: Any, cu_seqlens: Any
) -> np.ndarray:
    """`append_paged` on arrays or real tensors."""

    def checked() -> Places:
        return Places.checked(k, v, k_pages, v_pages, page_table, lengths_k, cu_seqlens)

    form = form_of(k, v, k_pages, v_pages)
    if form is None:
        k, v, k_pages, v_pages = check_cache({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
        places = checked()
    else:
        facts = form, distance_within(k_pages, v_pages)
        places = known((page_table, lengths_k, cu_seqlens), facts, checked)
    places.write(k, v, k_pages, v_pages)
    return places.ends.copy()


def _on_cpu(call: PagedCall) -> bool:
    """Whether the CPU's kernels compute the call."""
    if not api.is_torch(call.q):
        return True
    from redblue.op.pytorch import ops

    return call.q.is_cpu and ops.substitute() is None


def _on_gpu(call: PagedCall, page_table: Any) -> tuple[Any, Any] | None:
    """The results of the GPU kernels; None if they do not support the call. page_table: the caller's table."""
    if call.q.device.type not in ("cuda", "cpu"):
        return None
    from redblue.op.pytorch import ops

    ops.gpu_kernels()
    from redblue.op.pytorch.paged import gpu

    return gpu.attend(call, page_table)


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
        own = of_sequence(options, b, n_k)
        if call.tree is not None:
            tree = call.tree[sequences.starts[b] : sequences.starts[b + 1]]
            newest = min(tree.shape[1], n_k)
            dense = np.ones((n_q, n_k), bool)
            dense[:, n_k - newest :] = tree[:, tree.shape[1] - newest :]
            own = own._replace(mask=Mask.from_dense(dense) if dense.size else Mask.full())
        out, lse = api.attention(*(x.swapaxes(0, 1)[None] for x in (q, k, v)), return_lse=True, **own._asdict())
        outs.append(out[0].swapaxes(0, 1))
        lses.append(lse[0].swapaxes(0, 1))
    sums = sum_dtype(dtype_name(call.q.dtype))
    if api.is_torch(call.q):
        import torch

        if not outs:
            return call.q.new_zeros(call.shape), call.q.new_zeros(lead, dtype=getattr(torch, sums))
        return torch.cat(outs).reshape(call.shape), torch.cat(lses).reshape(lead)
    if not outs:
        return np.zeros(call.shape, call.q.dtype), np.zeros(lead, sums)
    return np.concatenate(outs).reshape(call.shape), np.concatenate(lses).reshape(lead)
