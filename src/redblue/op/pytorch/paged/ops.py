"""The PyTorch ops redblue::attention_paged and redblue::append_paged, for graphs: torch.compile, export, fake tensors.

Eager calls do not use them. The ops have no derivatives. They check tables and lengths at run time, because a graph
has no values before that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from redblue.base.errors import RedblueError
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import TABLE, Options, PagedArguments, checked
from redblue.masks import Mask
from redblue.op.packed import known_window
from redblue.op.paged import call, direct
from redblue.op.paged.options import check_no_gradient
from redblue.op.pytorch.dispatch import is_plain, mask_argument
from redblue.op.pytorch.layouts import sums_of
from redblue.op.pytorch.ops import HOST_TAGS, library

# The options of the op. Window and tree stand for the mask.
_OPTIONS = tuple(name for name in TABLE if name in PagedArguments.__optional_keys__ and name != "mask")
_SCHEMA = ", ".join(TABLE[name].schema for name in _OPTIONS)
_CACHE = "Tensor page_table, Tensor lengths_k"
library.define(
    f"attention_paged(Tensor q, Tensor k_pages, Tensor v_pages, {_CACHE}, Tensor? cu_seqlens_q, SymInt? prefix_pages, "
    f"SymInt left, SymInt right, Tensor? tree, {_SCHEMA}) -> (Tensor out, Tensor lse)",
    tags=HOST_TAGS,
)
library.define(
    f"append_paged(Tensor k, Tensor v, Tensor(a!) k_pages, Tensor(b!) v_pages, {_CACHE}, Tensor? cu_seqlens) -> Tensor",
    tags=HOST_TAGS,
)


def observed(*tensors: Any) -> bool:
    """Whether something other than eager PyTorch observes a call on these tensors, so that it must call an op."""
    return all(isinstance(x, Tensor) for x in tensors) and not is_plain(*tensors)


def attention_paged(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Any,
    lengths_k: Any,
    cu_seqlens_q: Any,
    prefix_pages: int | None,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """direct.computed as a call of the op."""
    mask, tree = _mask_and_tree(options.mask)
    options = checked(options._replace(mask=None))
    arrays = {name: x for name, _, x in options.present_arrays()}
    _check_tensors({"q": q, "k_pages": k_pages, "v_pages": v_pages, **arrays})
    table, lengths = number_tensor("page_table", page_table), number_tensor("lengths_k", lengths_k)
    starts = None if cu_seqlens_q is None else number_tensor("cu_seqlens_q", cu_seqlens_q)
    cache = q, k_pages, v_pages, table, lengths, starts, prefix_pages
    flat = mask.left, mask.right, tree, *(getattr(options, name) for name in _OPTIONS)
    return torch.ops.redblue.attention_paged.default(*cache, *flat)


def append_paged(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Any, lengths_k: Any, cu_seqlens: Any
) -> Any:
    """direct.appended as a call of the op. In graphs not made by torch.compile, the lengths stay a tensor."""
    _check_tensors({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
    table, lengths = number_tensor("page_table", page_table), number_tensor("lengths_k", lengths_k)
    starts = None if cu_seqlens is None else number_tensor("cu_seqlens", cu_seqlens)
    ends = torch.ops.redblue.append_paged.default(k, v, k_pages, v_pages, table, lengths, starts)
    return ends.numpy() if torch.compiler.is_dynamo_compiling() or type(ends) is Tensor else ends


def _mask_and_tree(mask: Any) -> tuple[MaskArgument, Tensor | None]:
    """The op's arguments for the mask of a user."""
    if mask is None or isinstance(mask, Mask):
        return mask_argument(call.window_of(mask), "auto", False), None
    return mask_argument(Mask.full(), "auto", False), number_tensor("mask", mask)


def number_tensor(name: str, values: Any) -> Tensor:
    """Whole numbers or booleans as a tensor."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedblueError(f"{name} must be numbers or a tensor of them: {error}") from None


def _check_tensors(tensors: dict[str, Any]) -> None:
    """Raise RedblueError unless all are dense tensors without tangents."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise RedblueError(f"{name} must be a PyTorch tensor like the others, got {type(x).__name__}")
        if x.is_nested or x.layout != torch.strided:
            raise RedblueError(f"{name} must be dense, got a tensor of layout {x.layout}")
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise RedblueError(f"{name} has a forward-mode tangent, but a paged cache has no derivatives")


# The ops -----------------------------------------------------------------------------------------------------------


def _attention(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, starts: Any, prefix: Any, *flat: Any
) -> tuple[Tensor, Tensor]:
    left, right, tree, *values = flat
    mask = known_window(left, right) if tree is None else tree
    options = Options(mask, **dict(zip(_OPTIONS, values, strict=True)))
    out, lse = direct.computed(q, k, v, table, lengths, starts, prefix, options)
    return out.contiguous(), lse.contiguous()


def _fake_attention(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    call.check_cache({"q": q, "k_pages": k, "v_pages": v})
    call.check_heads(q, k)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=sums_of(q.dtype))


def _append(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, *others: Any) -> Tensor:
    return torch.from_numpy(direct.appended(k, v, k_pages, v_pages, *others))


def _fake_append(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, starts: Any
) -> Tensor:
    call.check_cache({"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages})
    return lengths.new_empty(lengths.shape, dtype=torch.int64, device="cpu")


def _without_gradients(op: Any, names: tuple[str, ...]) -> Any:
    """The op's function for autograd: it refuses tensors that require gradients."""

    def run(keys: Any, *arguments: Any) -> Any:
        for name, x in zip(names, arguments, strict=False):
            if isinstance(x, Tensor):
                check_no_gradient(name, x)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    return run


def _no_vmap(*arguments: Any) -> Any:
    raise RedblueError("vmap is not for paged caches: give all sequences in one call, since they may have any lengths")


for name, kernel, fake in (
    ("attention_paged", _attention, _fake_attention),
    ("append_paged", _append, _fake_append),
):
    op = getattr(torch.ops.redblue, name).default
    library.impl(name, kernel, "CPU")
    library.impl(name, kernel, "CUDA")
    names = tuple(argument.name for argument in op._schema.arguments)
    library.impl(name, _without_gradients(op, names), "Autograd", with_keyset=True)
    torch.library.register_fake(f"redblue::{name}", fake, lib=library)
    torch.library.register_vmap(f"redblue::{name}", _no_vmap, lib=library)
