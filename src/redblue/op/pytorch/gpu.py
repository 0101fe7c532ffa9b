"""The op's two passes on GPUs: convert a checked call to launches of kernels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redblue.kernels.gpu import replay
from redblue.kernels.gpu.bias_gradient import add_bias_gradient
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.mask_lists import KEPT
from redblue.kernels.gpu.planning import fallback, tune
from redblue.kernels.gpu.planning.device import capturing, copied
from redblue.kernels.gpu.planning.plan import Launch, candidates, card_of, launches, plan
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.gpu.versions import check_gradients_with_dropout
from redblue.kernels.mask_argument import OPEN
from redblue.kernels.mask_planes import check_lead
from redblue.kernels.options import ARRAYS, Options, check_numbers
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask
from redblue.masks.rules.stack import planes
from redblue.op.pytorch import layouts
from redblue.op.pytorch.masks import mask_named


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Compute ops.forward on a GPU: the output and the log-sum-exp of each row."""
    call = layouts.known_call(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), layouts.forms(options))
    out = q.new_empty_strided(*call.out[layouts.layout_index(q)])
    lse = q.new_empty_strided(*call.lse, dtype=call.sums)
    if not out.numel():
        return out, lse
    tensors: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, "lse": lse} | _arrays(options, call)
    key = _replay_key("forward", tensors, options)
    if not _replayed(key, tensors):
        _run("forward", list(_tasks(call, options, tensors)), call, tensors, options, key)
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute ops.backward on a GPU: dq, dk, dv, the bias's gradient (empty without bias_grad) and delta."""
    call = layouts.known_call(q.shape, k.shape, v.shape, (q.dtype, k.dtype, v.dtype), layouts.forms(options))
    layouts.check_outputs(call, dout, dlse, out, lse)
    if options.seed is not None:
        check_gradients_with_dropout()
    layout_index = layouts.layout_index
    dq, dk, dv = (x.new_empty_strided(*two[layout_index(x)]) for x, two in ((q, call.q), (k, call.k), (v, call.v)))
    delta = q.new_empty(lse.shape, dtype=call.sums)
    bias = options.bias if bias_grad else None
    dbias = q.new_zeros((0,) if bias is None else bias.shape, dtype=call.sums)
    if not out.numel():
        return dq.zero_(), dk.zero_(), dv.zero_(), dbias, delta
    tensors = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv, "delta": delta}
    tensors |= {"lse": lse.contiguous(), "dlse": None if dlse is None else dlse.contiguous()}
    if bias is not None:
        tensors["dbias"] = dbias.expand(ARRAYS["bias"].shape(call.sizes))
    present = {name: x for name, x in tensors.items() if x is not None} | _arrays(options, call, backward=True)
    key = None if bias_grad else _replay_key("backward", present, options)
    if _replayed(key, present):
        return dq, dk, dv, dbias, delta
    tasks = list(_tasks(call, options, present))
    _run("backward", tasks, call, present, options, key)
    for task in () if bias is None else tasks:
        add_bias_gradient(task, precision_of(q))
    return dq, dk, dv, dbias, delta


def _run(
    direction: str,
    tasks: list[Task],
    call: layouts.Call,
    tensors: dict[str, Tensor],
    options: Options,
    key: Hashable | None,
) -> None:
    """Run the tasks with the planned launch, or, on a GPU, with the candidate that tuning measured as the fastest.

    If the card refuses a launch, a smaller one takes its place. key: from `_replay_key`; the launch is kept for later
    calls of this key, unless it took the place of another one.
    """
    q = tensors["q"]
    precision = precision_of(q)
    launched: list[tuple[Run, Any]] = []
    kernel = ""

    def run(launch: Launch) -> None:
        nonlocal kernel
        kernel = launch.kernel
        for task in tasks:
            launched.clear()  # frees temporary memory; the launches of several tasks are not kept
            runs = getattr(KERNELS[launch.kernel], direction)(task, launch, precision)
            launched.extend((kernel_run, kernel_run()) for kernel_run in runs)

    mask, schedule = options.mask or OPEN, options.schedule
    card, plan_options = card_of(q.device), tasks[0].plan_options
    if len(tasks) > 1:
        plan_options = plan_options._replace(
            by_tma=all(task.by_tma for task in tasks), by_gluon=min(task.by_gluon for task in tasks)
        )
    form = "lists" if mask.name else "full" if mask.left < 0 and mask.right < 0 else "band"
    kind = tune.Kind.of(
        direction, call.sizes, f"{call.dtype} {precision}", form, plan_options, schedule, q.device, card
    )
    request = direction, call.sizes, call.dtype, card, plan_options, schedule

    def choose() -> Launch:
        return tune.chosen(kind, candidates(*request), run) if q.is_cuda and tune.enabled() else plan(*request)

    planned = fallback.run(kind, choose, lambda: launches(*request), run)
    if planned and key is not None and len(tasks) == 1 and _only_launches(kernel, tasks[0]):
        replay.keep(key, replay.recorded(launched, tuple(tensors.values())))


def _arrays(options: Options, call: layouts.Call, backward: bool = False) -> dict[str, Tensor]:
    """The options that are tensors and that the kernels read, converted and expanded for them."""
    arrays = layouts.expanded_arrays(options, call, backward) if options.has_arrays else {}
    if options.dropout and options.seed is not None:
        arrays["seed"] = options.seed
    return arrays


def _replay_key(direction: str, tensors: dict[str, Tensor], options: Options) -> Hashable | None:
    """Everything on which the launches of a call depend; None if its mask is not a band: its lists may be evicted.

    Also None while a CUDA graph is captured: a launch chosen meanwhile is not tuned.
    """
    q = tensors["q"]
    if (options.mask is not None and options.mask.name) or capturing(q.device):
        return None
    settings = precision_of(q), tune.enabled(), torch.are_deterministic_algorithms_enabled()
    forms = replay.forms(tuple(tensors.values()))
    return direction, options.others, q.device, card_of(q.device), *settings, *tensors, forms


def _replayed(key: Hashable | None, tensors: dict[str, Tensor]) -> bool:
    """Launch the kernels again if a call of this key is known. Returns whether they ran."""
    known = None if key is None else replay.known(key)
    return known is not None and known.run(tuple(tensors.values()))


def _only_launches(kernel: str, task: Task) -> bool:
    """Whether launches are all that the kernel's schedule does for the task.

    Except for `flash`, PyTorch also clears or copies keys that no query attends.
    """
    first_attended, end_attended = (
        task.first or 0,
        task.sizes.n_k if task.end is None else task.sizes.n_q - 1 + task.end,
    )
    return kernel == "flash" or (first_attended <= 0 and end_attended >= task.sizes.n_k)


def precision_of(x: Tensor) -> str:
    """The precision of float32 products in PyTorch's settings; newer versions of PyTorch have a new name for it."""
    if x.dtype != torch.float32:
        return "ieee"
    settings = torch.backends.cuda.matmul
    precision = getattr(settings, "fp32_precision", None)  # the old name must not be read after the new one was set
    return "tf32" if (settings.allow_tf32 if precision is None else precision == "tf32") else "ieee"


def _tasks(call: layouts.Call, options: Options, tensors: dict[str, Tensor]) -> Iterator[Task]:
    """Yield the call as tasks with one leading dimension: one task, unless a tensor's strides require several.

    tensors: the tensors by their names in Task or Options, those of `_arrays` included.
    """
    check_numbers(options)
    sizes = call.sizes
    argument = options.mask or OPEN
    first, end = argument.band(sizes)
    mask = mask_named(argument.name)
    if mask is not None:
        check_lead(mask, sizes)
    common: dict[str, Any] = {"first": first, "end": end, "mask": mask, **options.numbers(sizes)}
    if options.seed is None:
        common["dropout"] = 0.0
    named = {}
    for name, x in tensors.items():
        (named if name not in Options._fields or (name in ARRAYS and ARRAYS[name].lead) else common)[name] = x
    stream_planes = None if mask is None else _planes(mask, sizes, tensors["q"].device)
    if stream_planes is not None:
        named["planes"] = stream_planes
    lse = named["lse"]
    for part in _parts(tuple(named.values())):
        views: dict[str, Any] = dict(zip(named, part, strict=True))
        first_row = views["lse"].storage_offset() - lse.storage_offset()
        yield Task.of(sizes=_sizes(sizes, part[0].shape[0]), first_row=first_row, **views, **common)


@lru_cache(maxsize=KEPT)
def _planes(mask: Mask, sizes: Sizes, device: torch.device) -> Tensor | None:
    """The index of every stream's mask plane, int32 (lead..., key heads); None if the mask has one plane."""
    _, stream_planes = planes(mask.rule)
    if stream_planes.size == 1:
        return None
    return copied(stream_planes.astype(np.int32), device).expand(*sizes.lead, sizes.kv_heads)


def _sizes(sizes: Sizes, batch: int) -> Sizes:
    return sizes._replace(lead=(batch,))


def _parts(arrays: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors with any number of leading dimensions into views with one leading dimension."""
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
    """A view with the first two dimensions joined; None if their strides do not allow it."""
    try:
        return x.view(x.shape[0] * x.shape[1], *x.shape[2:])
    except RuntimeError:
        return None
