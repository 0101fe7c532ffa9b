"""The op's two passes on GPUs: from a checked call to launches of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.kernels.cpu.call import Sizes
from redblue.kernels.cpu.mask_form import check_lead
from redblue.kernels.gpu.bias_gradient import add_bias_gradient
from redblue.kernels.gpu.launch import Task
from redblue.kernels.gpu.mask_lists import KEPT
from redblue.kernels.gpu.planning import fallback, tune
from redblue.kernels.gpu.planning.device import copied
from redblue.kernels.gpu.planning.plan import Launch, candidates, card_of, launches, plan
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.gpu.versions import check_gradients_with_dropout
from redblue.masks import Mask
from redblue.masks.rules.stack import planes
from redblue.op.pytorch import layouts
from redblue.op.pytorch.masks import mask_named


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, sinks: Any, seed: Any, *rest: Any) -> tuple[Tensor, Tensor]:
    """As ops.forward."""
    call = layouts.known_call(
        q.shape, k.shape, v.shape, layouts.shape_of(bias), layouts.shape_of(sinks), *_types(q, k, v, bias)
    )
    out = q.new_empty_strided(*call.out[layouts.inside(q)])
    lse = q.new_empty_strided(*call.lse, dtype=call.sums)
    if not out.numel():
        return out, lse
    if sinks is not None:
        sinks = layouts.check_sinks(sinks).to(call.sums).contiguous()
    tasks = list(_tasks(call, q, bias, sinks, seed, rest, k=k, v=v, out=out, lse=lse))
    _run("forward", tasks, call, q, rest)
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    *more: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As ops.backward."""
    *rest, bias_grad = more
    call = layouts.known_call(q.shape, k.shape, v.shape, layouts.shape_of(bias), None, *_types(q, k, v, bias))
    layouts.check_outputs(call, dout, dlse, out, lse)
    if seed is not None:
        check_gradients_with_dropout()
    inside = layouts.inside
    dq, dk, dv = (x.new_empty_strided(*two[inside(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    delta = q.new_empty(lse.shape, dtype=call.sums)
    dbias = q.new_zeros((0,) if bias is None or not bias_grad else bias.shape, dtype=call.sums)
    if not out.numel():
        return dq.zero_(), dk.zero_(), dv.zero_(), dbias, delta
    tensors = {"k": k, "v": v, "out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv, "delta": delta}
    tensors |= {"lse": lse.contiguous(), "dlse": None if dlse is None else dlse.contiguous()}
    if bias is not None and bias_grad:
        tensors["dbias"] = dbias.expand(call.bias)
    tasks = list(_tasks(call, q, bias, None, seed, tuple(rest), **tensors))
    _run("backward", tasks, call, q, tuple(rest))
    for task in tasks if bias_grad else ():
        add_bias_gradient(task, _precision(q))
    return dq, dk, dv, dbias, delta


def _types(*tensors: Tensor | None) -> list[torch.dtype | None]:
    return [None if x is None else x.dtype for x in tensors]


def _run(direction: str, tasks: list[Task], call: Any, q: Tensor, rest: tuple) -> None:
    """The tasks as planned or, on a GPU, as was found to be fastest among the plan's candidates; or by what takes their
    place where the card refuses them."""
    precision = _precision(q)

    def run(launch: Launch) -> None:
        for task in tasks:
            for each in getattr(KERNELS[launch.kernel], direction)(task, launch, precision):
                each()

    left, right, _, mask, schedule = rest[:5]
    card, options = card_of(q.device), tasks[0].options
    seen = "lists" if mask else "full" if left < 0 and right < 0 else "band"
    dtype = f"{call.dtype} {precision}"
    kind = tune.Kind.of(direction, call.sizes, dtype, seen, options, schedule, q.device, card)
    asked = direction, call.sizes, call.dtype, card, options, schedule

    def choose() -> Launch:
        return tune.chosen(kind, candidates(*asked), run) if q.is_cuda and tune.enabled() else plan(*asked)

    fallback.run(kind, choose, lambda: launches(*asked), run)


def _precision(x: Tensor) -> str:
    """Of products of float32 numbers: PyTorch's own setting, under its new name where it has one."""
    if x.dtype != torch.float32:
        return "ieee"
    said = torch.backends.cuda.matmul
    new = getattr(said, "fp32_precision", None)  # the old name must not be read once the new one was set
    return "tf32" if (said.allow_tf32 if new is None else new == "tf32") else "ieee"


def _tasks(
    call: Any, q: Tensor, bias: Any, sinks: Any, seed: Any, rest: tuple, **arrays: Tensor | None
) -> Iterator[Task]:
    """The call in parts of one leading dimension: one part, unless the strides of some tensor forbid that."""
    left, right, bottom_right, mask, _, scale, softcap, dropout = rest
    sizes = call.sizes
    layouts.check_numbers(softcap, dropout, seed)
    offset = sizes.n_k - sizes.n_q if bottom_right else 0
    most = sizes.n_q + sizes.n_k  # a side so wide never binds, and fits
    named_mask = mask_named(mask)
    if named_mask is not None:
        check_lead(named_mask, sizes)
    common: dict[str, Any] = {
        "first": None if left < 0 else offset - min(left, most),
        "end": None if right < 0 else offset + min(right, most) + 1,
        "mask": named_mask,
        "scale": sizes.d**-0.5 if scale is None else scale,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": 0.0 if seed is None else dropout,
        "seed": seed if dropout else None,
    }
    arrays["q"], arrays["bias"] = q, (None if bias is None else bias.expand(call.bias))
    arrays["planes"] = None if named_mask is None else _planes(named_mask, sizes, q.device)
    named = {name: x for name, x in arrays.items() if x is not None}
    lse = named["lse"]
    for part in _parts(tuple(named.values())):
        given: dict[str, Any] = dict(zip(named, part, strict=True))
        first_row = given["lse"].storage_offset() - lse.storage_offset()
        yield Task(sizes=_sizes(sizes, part[0].shape[0]), first_row=first_row, **given, **common)


@lru_cache(maxsize=KEPT)
def _planes(mask: Mask, sizes: Sizes, device: torch.device) -> Tensor | None:
    """Which of its planes each stream sees: int32 (lead..., key heads); None: there is but one."""
    _, each = planes(mask.rule)
    if each.size == 1:
        return None
    return copied(each.astype(np.int32), device).expand(*sizes.lead, sizes.kv_heads)


def _sizes(sizes: Sizes, batch: int) -> Sizes:
    return sizes._replace(lead=(batch,))


def _parts(arrays: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Views of the tensors with one leading dimension, where there are any number of them."""
    if arrays[0].dim() == 3:
        yield from _parts(tuple(x[None] for x in arrays))
        return
    if arrays[0].dim() == 4:
        yield arrays
        return
    joined = [_joined(x) for x in arrays]
    if all(x is not None for x in joined):
        yield from _parts(tuple(x for x in joined if x is not None))
        return
    for i in range(arrays[0].shape[0]):
        yield from _parts(tuple(x[i] for x in arrays))


def _joined(x: Tensor) -> Tensor | None:
    """A view with the first two dimensions as one; None where their strides allow none."""
    try:
        return x.view(x.shape[0] * x.shape[1], *x.shape[2:])
    except RuntimeError:
        return None
