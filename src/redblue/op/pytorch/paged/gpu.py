"""attention_paged on GPUs: converts a checked call to launches of the kernels for pages."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from redblue.base.dtypes import dtype_name
from redblue.base.errors import RedblueError
from redblue.compiled import _core
from redblue.kernels.cpu.call import Array
from redblue.kernels.cpu.paged import Cache, call_of
from redblue.kernels.cpu.plan import Tile
from redblue.kernels.gpu import replay
from redblue.kernels.gpu.launch import Run
from redblue.kernels.gpu.paged.layout import MAX_KEYS, Layout, layout_of, span_per_row
from redblue.kernels.gpu.paged.nodes import nodes_of
from redblue.kernels.gpu.paged.task import Arrays, PagedTask, Work
from redblue.kernels.gpu.planning import fallback, tune
from redblue.kernels.gpu.planning.card import card_of
from redblue.kernels.gpu.planning.device import capturing, copied, in_use
from redblue.kernels.gpu.planning.plan import Launch, Unplanned, launches, node_sizes, plan
from redblue.kernels.options import ARRAYS, Options, check_array
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask
from redblue.op.paged.call import PagedCall
from redblue.op.paged.pages import Sequences
from redblue.op.pytorch.gpu import precision_of
from redblue.op.pytorch.layouts import sums_of

KEPT = 16  # entries of each cache


def attend(call: PagedCall, page_table: Any) -> tuple[Tensor, Tensor] | None:
    """The output, of call.shape, and the log-sum-exp of each row; None, with a warning, if no tiles fit the card.

    page_table: the caller's table, which is read in place if it is a tensor on q's device. Raises RedblueError for
    options that do not fit the call.
    """
    q, sums = call.q, sums_of(call.q.dtype)
    if capturing(q.device):
        raise RedblueError(
            "attention_paged reads its page table and lengths on the host, so a CUDA graph cannot capture it: call it "
            "outside of graphs"
        )
    out, lse = q.new_empty((*q.shape[:2], call.v.shape[-1])), q.new_empty(q.shape[:2], dtype=sums)
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        table = _on_device(page_table, call.sequences, q.device)
        record = _record(call.options, call.sizes, q, sums)
        arrays = {name: x for name, _, x in record.present_arrays()}
        tensors = q, call.k, call.v, table, out, lse, *arrays.values()
        facts = None if call.tree is not None else _replay_facts(call, tensors, tuple(arrays))
        known = None if facts is None else replays.known(call.sequences, facts)
        try:
            ran = known is not None and known.run(tensors)
            if not ran and len(q) and q.shape[1]:
                task = _task(call, record, table, out, lse)
                made = _run(task, _placed(call, task), tensors, facts is not None)
                if made is not None:
                    replays.keep(call.sequences, facts, made)
        except Unplanned as failure:  # raised before the first launch: all classes have the same smallest tiles
            warnings.warn(f"{failure}; the keys and values of each sequence are gathered instead", stacklevel=4)
            return None
    return out.reshape(call.shape), lse.reshape(call.shape[:-1])


def _replay_facts(call: PagedCall, tensors: tuple[Tensor, ...], arrays: tuple[str, ...]) -> Hashable:
    """The facts besides the sequences on which the launches depend, for a call without a tree.

    arrays: the names of the options that are arrays.
    """
    device, options = call.q.device, call.options.others
    settings = precision_of(call.q), tune.enabled()
    return options, arrays, call.prefix, device, card_of(device), *settings, replay.forms(tensors)


def _task(call: PagedCall, record: Options, table: Tensor, out: Tensor, lse: Tensor) -> PagedTask:
    q, tree, sizes = call.q, call.tree, call.sizes
    for name, cache in (("k_pages", call.k), ("v_pages", call.v)):
        if not cache.shape[3]:
            raise RedblueError(f"{name} must have at least one feature, got shape {tuple(cache.shape)}")
    first, end = _window(call.options.mask)
    return PagedTask(
        sizes,
        q,
        call.k,
        call.v,
        table,
        out,
        lse,
        record,
        first,
        end,
        None if tree is None or not tree.shape[1] else torch.tensor(tree, dtype=_tree_type(q.dtype), device=q.device),
    )


def _on_device(page_table: Any, checked: Sequences, device: torch.device) -> Tensor:
    """The caller's page table, or a copy of the checked table on the device.

    Tables of narrow integers are copied, since Triton 3.6 cannot compile products in float64 whose addresses depend on
    integers of fewer than 32 bits.
    """
    if isinstance(page_table, Tensor) and page_table.device == device:
        return page_table if page_table.element_size() >= 4 else page_table.int()
    table = _tables.known(checked, device)
    if table is None:
        table = _tables.keep(checked, device, copied(checked.table, device))
    in_use((table,))
    return table


def _tree_type(dtype: torch.dtype) -> torch.dtype:
    """The type of a tree's elements: 32 bits for float64, for the reason that `_on_device` gives."""
    return torch.int32 if dtype == torch.float64 else torch.int8


def _window(mask: Mask | None) -> tuple[int | None, int | None]:
    """(first, end): a query at position i attends keys i + first .. i + end - 1; None: no limit."""
    left, right = (None, None) if mask is None else (mask.rule.left, mask.rule.right)  # pyright: ignore
    return None if left is None else -min(left, MAX_KEYS), None if right is None else min(right, MAX_KEYS) + 1


def _record(options: Options, sizes: Sizes, q: Tensor, sums: torch.dtype) -> Options:
    """The options in the form for kernels: arrays of the types and shapes that PagedTask documents."""
    expanded: dict[str, Tensor] = {}
    for name, rules, x in options.present_arrays():
        if not isinstance(x, Tensor) or x.device != q.device:
            got = f"one on {x.device}" if isinstance(x, Tensor) else type(x).__name__
            raise RedblueError(f"{name} must be a PyTorch tensor on q's device, {q.device}, got {got}")
        if rules.pairs:
            x = x[..., : sizes.n_k]
        check_array(name, tuple(x.shape), dtype_name(x.dtype), sizes, dtype_name(q.dtype))
        if rules.own_type and sums != torch.float64:
            x = x.detach()
        else:  # booleans become whole numbers: kernels read a bias of whole numbers as boolean, and do not add it
            x = x.detach().to(torch.int32 if x.dtype == torch.bool else sums).contiguous()
        expanded[name] = x.expand(ARRAYS[name].shape(sizes))
    return options._replace(mask=None, **expanded)


@dataclass(frozen=True)
class _Placed:
    """A layout, and its arrays on a device."""

    layout: Layout
    device: torch.device
    arrays: Arrays
    programs: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def items(self, of_class: int, rows: int) -> Tensor:
        """The programs for the nodes of a class, for tiles of `rows` stacked rows, as Layout.items documents them."""
        kept = self.programs.get((of_class, rows))
        if kept is None:
            kept = self.programs[of_class, rows] = copied(self.layout.items(of_class, rows), self.device)
        in_use((kept,))
        return kept


def _placed(call: PagedCall, task: PagedTask) -> _Placed:
    """The layout of the call's work."""
    of, sizes, device = call.sequences, task.sizes, task.q.device
    key_bytes = task.q.element_size() * (sizes.d if task.aliased else sizes.d + sizes.d_v)
    request = _Request(
        device,
        (task.first, task.end),
        0 if task.tree is None else task.tree.shape[1],
        -1 if call.prefix is None else call.prefix,
        sizes.group,
        span_per_row(key_bytes, task.lse.element_size() * (sizes.d_v + 1)),
    )
    return _layouts.known(of, request) or _layouts.keep(of, request, _place(of, request))


class _Request(NamedTuple):
    """Everything but the sequences that a layout depends on."""

    device: torch.device
    window: tuple[int | None, int | None]  # PagedTask.first and .end
    newest: int  # columns of the tree; 0: none
    prefix: int  # pages that all sequences share; -1: not known yet
    group: int
    span_per_row: float


def _place(of: Sequences, request: _Request) -> _Placed:
    nodes = nodes_of(_shared(of, request), of.starts)
    layout = layout_of(nodes, of.starts, of.lengths, request.group, request.window, request.span_per_row)
    on_device = layout.nodes, layout.members, layout.merged, layout.starts, layout.parts
    return _Placed(layout, request.device, Arrays(*(copied(x, request.device) for x in on_device)))


Result = TypeVar("Result")


class _Recent(Generic[Result]):
    """The results for the sequences of recent calls. All layers of a model pass the same sequences."""

    def __init__(self) -> None:
        self.kept: tuple[tuple[Sequences, Hashable, Result], ...] = ()

    def known(self, sequences: Sequences, facts: Hashable) -> Result | None:
        """The result that was kept for equal sequences and facts. facts: everything else that the result depends on."""
        for kept, other_facts, result in self.kept:
            if other_facts == facts and _equal(kept, sequences):
                return result
        return None

    def keep(self, sequences: Sequences, facts: Hashable, result: Result) -> Result:
        self.kept = ((sequences, facts, result), *self.kept[: KEPT - 1])
        return result

    def forget(self) -> None:
        self.kept = ()


def forget() -> None:
    """Drop all cached layouts, tables and launches."""
    for cache in (_layouts, _tables, replays):
        cache.forget()


_layouts, _tables, replays = _Recent[_Placed](), _Recent[Tensor](), _Recent[replay.Replay]()


def _equal(a: Sequences, b: Sequences) -> bool:
    return a is b or (a.page == b.page and all(map(np.array_equal, a.arrays, b.arrays)))


def _shared(of: Sequences, request: _Request) -> list[_core.Node]:
    """The core's nodes. Kernels read a node's keys once for all its sequences."""
    starts, lengths, table = of.arrays
    first, end = request.window
    sequences = _core.Sequences(
        len(lengths),
        starts.ctypes.data,
        lengths.ctypes.data,
        table.ctypes.data,
        table.shape[1],
        max(1, of.page),
        -1 if first is None else -first,
        -1 if end is None else end - 1,
        table.ctypes.data if request.newest else 0,  # any address says that there is a tree
        request.newest,
        request.prefix,
    )
    nowhere, no_pages = Array(0, (0, 0, 0)), Array(0, (0, 0, 0, 0))  # the core reads no array for this
    cache, sizes = Cache(no_pages, no_pages, -1), Sizes((len(lengths),), 1, 1, 1, 1, 1, 1)
    return _core.shared_nodes(
        call_of(sizes, "float32", nowhere, cache, nowhere, nowhere, sequences=sequences, threads=1, tile=Tile(1, 1))
    )


def _run(task: PagedTask, placed: _Placed, tensors: tuple[Tensor, ...], wants_replay: bool) -> replay.Replay | None:
    """Run the kernels with the planned launches. If the card refuses a launch, a smaller one takes its place.

    Returns the launches for later calls if wants_replay, and if they are the planned ones.
    """
    sizes, layout, q = task.sizes, placed.layout, task.q
    in_use(placed.arrays)
    part = task.lse.new_empty((sizes.kv_heads, layout.partial_rows, sizes.d_v))
    work = Work(placed.arrays, part, task.lse.new_empty(part.shape[:2]), bool(layout.nodes[:, 1].any()))
    card, options, precision = card_of(q.device), task.plan_options, precision_of(q)
    launched: list[tuple[Run, Any]] = []
    for rows in np.unique(layout.classes).tolist():
        planned = node_sizes(rows, sizes.d, sizes.d_v)
        request = "paged", planned, dtype_name(q.dtype), card, options, "flash"
        kind = tune.Kind.of("paged", planned, f"{request[2]} {precision}", "band", options, "flash", q.device, card)

        def run(launch: Launch, rows: int = rows) -> None:
            forward = task.forward(work, placed.items(rows, launch.tiles.rows), launch, precision)
            launched.append((forward, forward()))

        wants_replay &= fallback.run(kind, partial(plan, *request), partial(launches, *request), run)
    merge = task.merge(work)
    launched.append((merge, merge()))
    kept = *placed.arrays, *placed.programs.values()
    return replay.recorded(launched, tensors, kept) if wants_replay else None
