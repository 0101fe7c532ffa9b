"""The PyTorch ops redblue::attention_varlen and redblue::attention_varlen_backward, for graphs and fake tensors.

Eager calls do not use them. A graph has no values of cu_seqlens while it is made, so the ops read and check cu_seqlens
at run time, and make the mask then. The ops take tensors (1, H, total, d), and return tensors of this form.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.mask_argument import OPEN, MaskArgument
from redblue.kernels.options import TABLE, WITHOUT_GRADIENT, Options, PackedArguments, check_gradients, checked
from redblue.masks import Mask
from redblue.op.packed import packed_calls, packed_lengths
from redblue.op.pytorch import autograd, ops
from redblue.op.pytorch.dispatch import check_tensors, drawn_seed, expanded, mask_argument
from redblue.op.pytorch.ops import HOST_TAGS, library
from redblue.op.pytorch.paged.ops import number_tensor

# The options of the ops. The mask comes first, as several arguments.
_OPTIONS = tuple(name for name in TABLE if name in PackedArguments.__optional_keys__)
_MASK_PARTS = len(MaskArgument._fields)
# all_rows: whether the last sequences must end at the last rows of q and of k; else the remaining rows give 0
_SEQUENCES = "Tensor cu_seqlens_q, Tensor? cu_seqlens_k, bool all_rows"
_SCHEMA = f"{_SEQUENCES}, {', '.join(TABLE[name].schema for name in _OPTIONS)}"
library.define(f"attention_varlen(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor out, Tensor lse)", tags=HOST_TAGS)
library.define(
    "attention_varlen_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,"
    f" {_SCHEMA}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor delta)",
    tags=HOST_TAGS,
)
forward_op = torch.ops.redblue.attention_varlen.default
backward_op = torch.ops.redblue.attention_varlen_backward.default


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, options: Options, all_rows: bool = True
) -> tuple[Tensor, Tensor]:
    """redblue.attention_varlen as a call of the op: out (total_q, H, d_v) and lse (H, total_q).

    all_rows: whether the sequences must fill all rows. If False, rows after the last sequence give 0 and -inf.
    """
    options = checked(options)
    check_gradients(options)
    check_tensors({"q": q, "k": k, "v": v} | {name: x for name, _, x in options.present_arrays()})
    # Copies, because the backward pass needs them, and callers may use the memory of theirs again.
    starts = number_tensor("cu_seqlens_q", cu_seqlens_q).clone()
    key_starts = None if cu_seqlens_k is None else number_tensor("cu_seqlens_k", cu_seqlens_k).clone()
    q, k, v = expanded(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), plain=False)
    options = options.with_mask(mask_argument(options.mask, "auto", False))
    options = options._replace(seed=drawn_seed(q, options.seed) if options.dropout else None)
    out, lse = forward_op(q, k, v, starts, key_starts, all_rows, *_flat(options))
    return out[0].transpose(0, 1), lse[0]


def _flat(options: Options) -> tuple[Any, ...]:
    """The options as arguments of the ops. `mask` must be a MaskArgument or None."""
    return (*(options.mask or OPEN), *(getattr(options, name) for name in _OPTIONS[1:]))


def _unflatten(flat: Any) -> Options:
    """The inverse of `_flat`."""
    return Options(MaskArgument(*flat[:_MASK_PARTS]), **dict(zip(_OPTIONS[1:], flat[_MASK_PARTS:], strict=True)))


# The ops' parts ------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A call of redblue::attention: its rows of q, its rows of k and v, and its options."""

    queries: slice
    keys: slice
    options: Options
    mask: Mask | None  # kept, because the options hold only its name

    def is_whole(self, q: Tensor, k: Tensor) -> bool:
        """Whether the call covers all rows."""
        return (self.queries, self.keys) == (slice(0, q.shape[-2]), slice(0, k.shape[-2]))


def _parts(q: Tensor, k: Tensor, starts: Tensor, key_starts: Tensor | None, all_rows: bool, options: Options) -> Any:
    """The calls that compute the sequences. Raises RedblueError, naming the argument, for wrong cu_seqlens."""
    lengths, key_lengths = packed_lengths(starts, key_starts, q.shape[-2], k.shape[-2], all_rows)
    own = {"mask": _mask(*options.mask), "alibi": options.alibi}
    parts = []
    for i, call in enumerate(packed_calls(lengths, key_lengths, own)):
        mask = call.options["mask"]
        changed = {"mask": mask_argument(mask, options.schedule, False), "alibi": call.options["alibi"]}
        if i and options.seed is not None:
            changed["seed"] = options.seed + i
        parts.append(_Part(call.queries, call.keys, options._replace(**changed), mask))
    return parts


@lru_cache(maxsize=256)
def _mask(left: int, right: int, bottom_right: bool, name: str) -> Mask | None:
    """The window within each sequence."""
    if name:
        raise RedblueError(f"the mask of packed sequences must be a window, got the mask {name[:80]}")
    if left < 0 and right < 0:
        return None
    sides = (None if side < 0 else side for side in (left, right))
    return Mask.sliding_window(*sides, align="bottom-right" if bottom_right else "top-left")


def _forward(q: Tensor, k: Tensor, v: Tensor, starts: Any, key_starts: Any, all_rows: bool, *flat: Any) -> Any:
    options = _unflatten(flat)
    ops.common_device((q, k, v, *options.tensors))
    parts = _parts(q, k, starts, key_starts, all_rows, options)
    if len(parts) == 1 and parts[0].is_whole(q, k):
        return ops.forward(q, k, v, parts[0].options)
    out, lse = ops.fake_forward(q, k, v, _without_slopes(options))
    out.zero_()
    lse.fill_(-float("inf"))
    for queries, keys, own, _ in parts:
        results = ops.forward(q[:, :, queries], k[:, :, keys], v[:, :, keys], own)
        out[:, :, queries], lse[:, :, queries] = results
    return out, lse


def _backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    starts: Tensor,
    key_starts: Tensor | None,
    all_rows: bool,
    *flat: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = _unflatten(flat)
    ops.common_device((dout, dlse, q, k, v, out, lse, *options.tensors))
    parts = _parts(q, k, starts, key_starts, all_rows, options)
    if len(parts) == 1 and parts[0].is_whole(q, k):
        dq, dk, dv, _, delta = ops.backward(dout, dlse, q, k, v, out, lse, parts[0].options.for_backward, False)
        return dq, dk, dv, delta
    gradients = _fake_backward(dout, dlse, q, k, v, out, lse, starts, key_starts, all_rows, *flat)
    for x in gradients:
        x.zero_()
    dq, dk, dv, delta = gradients
    for queries, keys, own, _ in parts:
        of_queries = [None if x is None else x[:, :, queries] for x in (dout, dlse, q, out, lse)]
        part_dout, part_dlse, part_q, part_out, part_lse = of_queries
        tensors: Any = part_dout, part_dlse, part_q, k[:, :, keys], v[:, :, keys], part_out, part_lse
        results = ops.backward(*tensors, options=own.for_backward, bias_grad=False)
        dq[:, :, queries], dk[:, :, keys], dv[:, :, keys], _, delta[:, :, queries] = results
    return dq, dk, dv, delta


def _without_slopes(options: Options) -> Options:
    """The options without alibi: its slopes may be (sequences, H), which a single call refuses."""
    return options._replace(alibi=None)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    flat = others[3:]
    return ops.fake_forward(q, k, v, _without_slopes(_unflatten(flat)))


def _fake_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors, flat = arguments[:7], arguments[10:]
    dq, dk, dv, _, delta = ops.fake_backward(*tensors, options=_without_slopes(_unflatten(flat)), bias_grad=False)
    return dq, dk, dv, delta


# Derivatives, autocast and vmap --------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, starts, key_starts, all_rows, *flat = inputs
    options = _unflatten(flat)
    ctx.save_for_backward(q, k, v, *output, starts, key_starts, *options.tensors)
    ctx.all_rows, ctx.others, ctx.substitute = all_rows, options.others, ops.substitute()
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the op's arguments. dout or dlse is None if its output is not used."""
    if dout is None and dlse is None:
        return (None,) * len(ctx.needs_input_grad)
    _, _, _, _, _, _, *flat = ctx.needs_input_grad
    needed = _unflatten(flat)
    for name in WITHOUT_GRADIENT:
        if getattr(needed, name):
            raise RedblueError(f"{name} has no gradient: detach it")
    q, k, v, out, lse, starts, key_starts, *tensors = ctx.saved_tensors
    options = Options(*ctx.others, *tensors)
    if dout is None:
        dout = torch.zeros_like(out)
    with ops.substituted(by=ctx.substitute):
        sequences = starts, key_starts, ctx.all_rows
        dq, dk, dv, delta = backward_op(dout, dlse, q, k, v, out, lse, *sequences, *_flat(options.for_backward))
    gradients: dict[str, Any] = {}
    if options.sinks is not None and needed.sinks:
        gradients["sinks"] = autograd.sinks_gradient(options.sinks, lse, delta)
    others = [None] * (_MASK_PARTS + 3)  # the sequences and the mask
    return dq, dk, dv, *others, *(gradients.get(name) for name in _OPTIONS[1:])


def _autocast(device: str, key: str) -> Any:
    """The op under autocast on this kind of device."""
    off = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def attention(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(off):
            return forward_op(*(autograd.autocast_to(device, x) for x in (q, k, v)), *others)

    return attention


def _one_by_one(op: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, tuple]:
    """The op under vmap: one call for each entry of the mapped dimension."""
    return autograd.one_by_one(op, info.batch_size, in_dims, (0,) * len(op._schema.returns), *arguments)


for op, kernel, fake in ((forward_op, _forward, _fake_forward), (backward_op, _backward, _fake_backward)):
    name = op._schema.name
    short = name.split("::")[1]
    library.impl(short, kernel, "CPU")
    library.impl(short, kernel, "CUDA")
    torch.library.register_fake(name, fake, lib=library)
    torch.library.register_vmap(name, partial(_one_by_one, op), lib=library)
torch.library.register_autograd("redblue::attention_varlen", _gradients, setup_context=_save, lib=library)
torch.library.register_autograd("redblue::attention_varlen_backward", autograd.no_second_derivative, lib=library)
for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    library.impl("attention_varlen", _autocast(device, key), key)
