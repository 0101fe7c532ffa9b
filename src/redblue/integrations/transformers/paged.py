"""The attention function for transformers' continuous batching, which reads the pages of its cache in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator

from redblue.base.errors import RedblueError
from redblue.integrations.transformers.attention import check_others
from redblue.integrations.transformers.paged_steps import Step, step_of
from redblue.masks import Mask
from redblue.op.paged.attention import append_paged, attention_paged, merge_attention
from redblue.op.paged.call import CAUSAL
from redblue.op.varlen import attention_varlen

OF_BATCHING = {"logits_indices", "logits_processor_args"}  # keyword arguments that do not concern attention
_steps = WeakIdKeyDictionary()  # Step by the tensor of places to write, which all layers of a group share


class Layer(NamedTuple):
    """A layer's call. q (total_q, H, d), k and v (total_q, H_kv, d): the new tokens of all sequences, packed.

    k_pages, v_pages (pages, page, H_kv, d): views of the cache. window: keys that a query attends, itself included, or
    None for all. options: options that all functions of redblue accept.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    k_pages: Tensor
    v_pages: Tensor
    step: Step
    window: int | None
    options: dict[str, Any]

    @property
    def mask(self) -> Mask:
        """The mask of a sequence, counted from its last query and key."""
        return CAUSAL if self.window is None else Mask.sliding_window(self.window - 1, 0, align="bottom-right")


@torch.compiler.disable  # like transformers' own paged functions, which write into the cache in place
def paged_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: Any = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    cache: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    read_index: Any = None,
    write_index: Any = None,
    block_table: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Write new keys and values into the cache, and attend the keys that lie there. Returns (1, n, H, d) and None.

    query (1, H, n, d), key and value (1, H_kv, n, d): the concatenated new tokens of all sequences, perhaps with
    padding at the end, whose output is 0. cache: transformers' PagedAttentionCache. cu_seq_lens_q: (B + 1,), the bounds
    of the sequences' new tokens; cu_seq_lens_k: by type of layer, the bounds of their keys. read_index, write_index:
    for each group of layers, the cache rows of the keys, and the cache rows for new keys. block_table: for each group,
    the pages of the sequences, which replace both indices; None otherwise. Attention is causal. Raises RedblueError for
    an unsupported argument.
    """
    check_others({name: x for name, x in others.items() if name not in OF_BATCHING})
    _check(cache, attention_mask, dropout, is_causal)
    group = cache.layer_to_allocator[module.layer_idx]
    window = _window(group, sliding_window, block_table)
    write = write_index[group.index]
    step = _steps.get(write)
    if step is None:
        bounds = cu_seq_lens_q, cu_seq_lens_k[group.layer_type]
        pages = None if block_table is None else block_table[group.index]
        step = step_of(bounds, read_index[group.index], write, pages, group.tokens_per_page, _ring(group) is not None)
        _steps[write] = step
    if isinstance(scaling, Tensor):
        query, scaling = query * scaling, 1.0
    options = {"scale": scaling, "softcap": softcap, "sinks": None if s_aux is None else s_aux.reshape(-1)}
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    total = int(step.starts[-1])
    # The method of full attention also serves rings. The rings' own method refuses every call, because the rows
    # of a ring do not hold the keys in the order of the tokens
    views = FullAttentionCacheAllocator.get_cache_for_block_table(group, module.layer_idx)
    layer = Layer(q[:total], k[:total], v[:total], *views, step, window, options)
    in_rings = _ring(group) is not None and step.table is not None
    # This must run before the write: it reads keys that the new keys replace
    several = _several_new_tokens(layer) if in_rings else None
    if block_table is None:
        group.update(k, v, module.layer_idx, write[:0], write)  # without rows to read, it only writes
    else:
        append_paged(layer.k, layer.v, *views, step.table, step.past, step.starts)
    out = _from_rings(layer, several) if in_rings else _from_pages(layer)
    if len(q) > total:
        out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, len(q) - total))
    return out.unsqueeze(0).contiguous(), None


def _from_pages(layer: Layer) -> Tensor:
    """The outputs of all sequences, whose keys lie in pages.

    If no sequence has keys of earlier steps, the new keys are read directly.
    """
    q, step = layer.q, layer.step
    if step.table is None:
        return attention_varlen(q, layer.k, layer.v, step.starts, mask=layer.mask, **layer.options)
    lengths = step.past + step.queries
    pages = layer.k_pages, layer.v_pages, step.table, lengths, step.starts
    return attention_paged(q, *pages, mask=layer.mask, **layer.options)


def _check(cache: Any, attention_mask: Any, dropout: float, is_causal: bool | None) -> None:
    """Raise RedblueError for a call that does not come from continuous batching or is not causal."""
    if not isinstance(cache, PagedAttentionCache):
        raise RedblueError(
            f"cache must be transformers' PagedAttentionCache, got {type(cache).__name__}: this attention serves "
            'generate_batch only; set_attn_implementation("redblue") makes the model serve other calls again'
        )
    for name, value, required in (
        ("attention_mask", attention_mask, None),
        ("dropout", dropout, 0),
        ("is_causal", is_causal, True),
    ):
        if value is not None and (isinstance(value, Tensor) or value != required):
            shown = type(value).__name__ if isinstance(value, Tensor) else value
            raise RedblueError(f"{name} must be {required} in continuous batching, got {shown}: use paged|eager")


def _ring(group: Any) -> int | None:
    """The number of keys per sequence that the group's cache keeps in a ring; None if it keeps all keys."""
    return getattr(group, "sliding_window", None)


def _window(group: Any, sliding_window: int | None, block_table: Tensor | None) -> int | None:
    """The number of keys that a query attends: the length of a ring, or the layer's window."""
    ring = _ring(group)
    if ring is None:
        return sliding_window
    if sliding_window not in (None, ring):
        raise RedblueError(f"sliding_window must equal the window of the layer's cache, {ring}, got {sliding_window}")
    if block_table is not None:
        raise RedblueError("block_table must be None for layers with a sliding window: their keys lie in a ring")
    return ring


def _several_new_tokens(layer: Layer) -> Tensor | None:
    """The outputs of the sequences with several new tokens, packed; None if there are none.

    Queries attend the new keys directly, and the old keys in the ring before new keys replace them.
    """
    step, queries = layer.step, layer.step.queries
    chosen = queries > 1
    if not chosen.any():
        return None
    q, k, v = (x[_rows(step, chosen)] for x in (layer.q, layer.k, layer.v))
    starts = np.append(0, np.cumsum(queries[chosen]))
    out, lse = attention_varlen(q, k, v, starts, mask=layer.mask, return_lse=True, **layer.options)
    # Every token is a page of its own, because the rows of a ring are in any order
    k_pages, v_pages = (x.flatten(0, 1).unsqueeze(1) for x in (layer.k_pages, layer.v_pages))
    options = layer.options | {"sinks": None}  # the part on the new keys includes the sinks
    assert layer.window is not None
    for b, first in zip(np.flatnonzero(chosen), starts.tolist(), strict=False):
        old = step.old[b]
        count = min(int(queries[b]), layer.window - 1)  # the queries that attend old keys
        if not len(old) or not count:
            continue
        own = slice(first, first + count)
        # Bottom-right alignment puts the last of these queries at the last old key, `count` tokens too early
        mask = Mask.sliding_window(layer.window - 1 - count, None, align="bottom-right")
        places = old[None], [len(old)], [0, count]
        part = attention_paged(q[own], k_pages, v_pages, *places, mask=mask, return_lse=True, **options)
        out[own] = merge_attention(out[own], lse[:, own].T, *part)[0]
    return out


def _from_rings(layer: Layer, several: Tensor | None) -> Tensor:
    """The outputs of all sequences, whose keys lie in rings.

    several: the outputs of the sequences with several new tokens.
    """
    step, queries = layer.step, layer.step.queries
    has_one = queries == 1
    rows = _rows(step, has_one)
    q, lengths = layer.q[rows].unsqueeze(1), step.past[has_one] + 1
    single = attention_paged(q, layer.k_pages, layer.v_pages, step.table, lengths, **layer.options).squeeze(1)
    if several is None:
        return single
    out = single.new_empty(len(layer.q), *single.shape[1:])
    out[rows] = single
    out[_rows(step, queries > 1)] = several
    return out


def _rows(step: Step, chosen: np.ndarray) -> Tensor:
    """The packed rows of the chosen sequences."""
    return torch.from_numpy(np.flatnonzero(np.repeat(chosen, step.queries)))
