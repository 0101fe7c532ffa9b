"""The operations of network schedules on PyTorch tensors (batch, heads, rows, columns), by redblue's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redblue.kernels.mask_planes import per_head
from redblue.kernels.options import Options
from redblue.kernels.positions import Positions
from redblue.machine.network import Shape, row_index
from redblue.masks import Mask
from redblue.masks.rules.selected import attending_queries, selected
from redblue.masks.rules.stack import Stack, planes
from redblue.op.pytorch import dispatch
from redblue.op.pytorch.layouts import sums_of
from redblue.schedules.network.layout import COLUMNS, KEY_ARRAYS, SUMS, Layout, Part

Tensors = Mapping[Part, Tensor]
Shapes = Mapping[Part, Shape]
Rows = Any  # an index of rows: a slice, or a tensor of numbers


class Block(NamedTuple):
    """The queries and keys of one computation.

    queries, keys: the rows of the concatenated shards that the block uses. mask: the mask among these rows. at_queries,
    at_keys: their positions in the sequences.
    """

    queries: Rows
    keys: Rows
    mask: Mask
    at_queries: np.ndarray
    at_keys: np.ndarray


class Operations:
    """The operations of one layout.

    options: the options of the whole call; arrays are (batch, heads) or (heads,), and a bias has the rows of this
    process's queries. dtype: the type of the inputs. bias_gradient: whether the backward pass adds up dbias, in the
    type of sums.
    """

    def __init__(
        self,
        layout: Layout,
        options: Options,
        dtype: torch.dtype,
        device: torch.device,
        bias_gradient: bool = False,
    ) -> None:
        self.layout, self.options, self.dtype, self.device = layout, options, dtype, device
        self.sums = sums_of(dtype)
        self.blocks = _blocks_of(layout)
        self.dbias = torch.zeros_like(options.bias, dtype=self.sums) if bias_gradient else None

    @cached_property
    def table(self) -> dict[str, Callable[..., Mapping[Part, Tensor]]]:
        """The operations by name."""
        return {
            "attend": self.attend,
            "attend_backward": self.attend_backward,
            "merge": self.merge,
            "sum_rows": self.sum_rows,
            "add": self.add,
            "zeros": self.zeros,
            "round": self.round,
        }

    def empty(self, name: Part, rows: int) -> Tensor:
        """A tensor, not filled, for the block `name` with `rows` rows."""
        c, p = self.layout, self.layout.problem
        columns = {"d": p.d, "d_v": p.d_v, "1": 1}[COLUMNS[name.array]]
        heads = c.shape(name, np.zeros(1)).width // (p.batch * columns)
        dtype = self.sums if name.array in SUMS else self.dtype
        return torch.empty((p.batch, heads, rows, columns), dtype=dtype, device=self.device)

    # Computing --------------------------------------------------------------------------------
    def attend(
        self,
        shapes: Shapes,
        tensors: Tensors,
        writes: Shapes,
        layout: Layout,
        process: int,
        owners: Sequence[int],
        shards: Sequence[int],
        first: bool,
    ) -> Tensors:
        block = self._block(process, owners, shards)
        results = {name: tensors[name] for name in writes} if not first else {}
        if block is None:
            return results or {name: self._nothing(name, len(shape.rows)) for name, shape in writes.items()}
        q, k, v = self._inputs(block, shapes, tensors, process)
        out, lse = dispatch.attention(q, k, v, self._options(block, process), return_lse=True)
        out, lse = out.to(self.sums), lse[..., None]
        outs = [name for name in writes if name.array == "out_sum"]
        if first and isinstance(block.queries, slice) and block.queries == slice(None):
            sizes = [len(writes[name].rows) for name in outs]
            for name, x, y in zip(outs, out.split(sizes, -2), lse.split(sizes, -2), strict=True):
                results |= {name: x, name._replace(array="lse"): y}
            return results
        if first:
            results = {name: self._nothing(name, len(shape.rows)) for name, shape in writes.items()}
        for name, own, new in _by_shard(outs, writes, block.queries):
            log = name._replace(array="lse")
            _merge_into(results[name], results[log], own, out[..., new, :], lse[..., new, :])
        return results

    def attend_backward(
        self,
        shapes: Shapes,
        tensors: Tensors,
        writes: Shapes,
        layout: Layout,
        process: int,
        owners: Sequence[int],
        shards: Sequence[int],
    ) -> Tensors:
        results = {name: tensors[name] for name in writes}
        block = self._block(process, owners, shards)
        if block is None:
            return results
        q, k, v = self._inputs(block, shapes, tensors, process)
        dout, lse, delta = (
            _stacked(tensors, array)[..., _index(block.queries), :] for array in ("dout", "lse", "delta")
        )
        # The kernels subtract the row sums of dout * out - dlse. With out = 0 and dlse = -delta, these are delta.
        nothing = torch.zeros((), dtype=dout.dtype, device=dout.device).expand(dout.shape)
        own, group = self._options(block, process), q.shape[-3] // k.shape[-3]
        repeated = group > 1 and per_head(block.mask)  # the kernels take one mask per key head
        if repeated:
            k, v = (x.repeat_interleave(group, -3) for x in (k, v))
        dq, dk, dv, dbias, _ = dispatch.gradients(
            *(dout, -delta[..., 0], q, k, v, nothing, lse[..., 0].contiguous(), own), self.dbias is not None
        )
        if repeated:
            dk, dv = (x.unflatten(-3, (-1, group)).sum(-3, dtype=self.sums) for x in (dk, dv))
        if self.dbias is not None:
            rows, keys = _bias_index(self.dbias, block)
            part = self.dbias[..., rows, :]
            part[..., keys] += dbias
            if not isinstance(rows, slice):  # the part is a copy
                self.dbias[..., rows, :] = part
        for array, new, rows in (("dq_sum", dq, block.queries), ("dk_sum", dk, block.keys), ("dv_sum", dv, block.keys)):
            names = [name for name in writes if name.array == array]
            for name, own, places in _by_shard(names, writes, rows):
                results[name][..., own, :] += new[..., places, :]
        return results

    def _block(self, process: int, owners: Sequence[int], shards: Sequence[int]) -> Block | None:
        key = process, tuple(owners), tuple(shards)
        if key not in self.blocks:
            self.blocks[key] = block_of(self.layout, *key) if shards else None
        return self.blocks[key]

    def _inputs(self, block: Block, shapes: Shapes, tensors: Tensors, process: int) -> tuple[Tensor, Tensor, Tensor]:
        needed = {
            name: x[..., _index(row_index(shapes[name], self.layout.needed_keys(process, name.shard))), :]
            for name, x in tensors.items()
            if name.array in "kv"
        }
        q = _stacked(tensors, "q")[..., _index(block.queries), :]
        k, v = (_stacked(needed, array)[..., _index(block.keys), :] for array in "kv")
        return q, k, v

    def _options(self, block: Block, process: int) -> Options:
        """The options of a block."""
        own, p, parts = self.options, self.layout.problem, self.layout.grid.head_parts
        changed: dict[str, Any] = {"mask": block.mask}
        for name, rules, x in own.present_arrays():
            if rules.pairs:
                rows, keys = _bias_index(x, block)
                changed[name] = x[..., rows, :][..., keys]
            else:
                changed[name] = x.chunk(parts, -1)[self.layout.part(process)]
        if own.by_position:
            first = self.layout.part(process) * (p.heads // parts)
            changed["positions"] = Positions(block.at_queries, block.at_keys, p.n_q, p.n_k, first, p.heads)
        return own._replace(**changed)

    def _nothing(self, name: Part, rows: int) -> Tensor:
        """The result of `rows` rows that attend no key."""
        return self.empty(name, rows).fill_(float("-inf") if name.array == "lse" else 0.0)

    # Sums -------------------------------------------------------------------------------------
    def merge(self, shapes: Shapes, tensors: Tensors, writes: Shapes, layout: Layout) -> Tensors:
        """The results of all heads for a process's queries, merged from the processes that computed them."""
        (whole, log), rows = writes, next(iter(writes.values())).rows
        by_part: dict[int, list[Part]] = {}
        for name in tensors:
            if name.array != "lse":
                by_part.setdefault(name.part, []).append(name)
        if not by_part:  # the process holds no queries
            return {name: self._nothing(name, len(rows)) for name in (whole, log)}
        outs, lses = [], []
        for part in range(layout.grid.head_parts):
            names = by_part.get(part, [])
            if len(names) == 1 and len(shapes[names[0]].rows) == len(rows):
                out, lse = tensors[names[0]], tensors[names[0]._replace(array="lse")]
            else:
                total = Part("out_sum", whole.shard, part), Part("lse", whole.shard, part)
                out, lse = (self._nothing(name, len(rows)) for name in total)
                for name in names:
                    own = _index(row_index(Shape(rows, 1), shapes[name].rows))
                    _merge_into(out, lse, own, tensors[name].to(self.sums), tensors[name._replace(array="lse")])
            outs.append(out.to(self.dtype))
            lses.append(lse)
        joined = (x[0] if len(x) == 1 else torch.cat(x, -3) for x in (outs, lses))
        return dict(zip((whole, log), joined, strict=True))

    def sum_rows(self, shapes: Shapes, tensors: Tensors, writes: Shapes) -> Tensors:
        ((total, shape),) = writes.items()
        result = self.empty(total, len(shape.rows)).zero_()
        for name, x in tensors.items():
            result[..., _index(row_index(shape, shapes[name].rows)), :] += x
        return {total: result}

    def add(self, shapes: Shapes, tensors: Tensors, writes: Shapes, layout: Layout) -> Tensors:
        """Add the results that several processes computed for parts of a process's rows and heads to their total."""
        ((total, shape),) = writes.items()
        for name, x in tensors.items():
            if name == total:
                continue
            parts, part = layout.grid.head_parts, name.part
            if name.array in KEY_ARRAYS:
                parts, part = layout.kv_parts, part * layout.kv_parts // parts
            heads = tensors[total].chunk(parts, -3)[part]
            heads[..., _index(row_index(shape, shapes[name].rows)), :] += x
        return {total: tensors[total]}

    def zeros(self, shapes: Shapes, tensors: Tensors, writes: Shapes, layout: Layout) -> Tensors:
        return {name: self.empty(name, len(shape.rows)).zero_() for name, shape in writes.items()}

    def round(self, shapes: Shapes, tensors: Tensors, writes: Shapes) -> Tensors:
        return {name: x.to(self.dtype) for name, x in zip(writes, tensors.values(), strict=True)}


# Blocks --------------------------------------------------------------------------------------------------------------


def _blocks_of(layout: Layout) -> dict[Any, Block | None]:
    """The cached blocks of a layout; stored in the layout, because masks take long to evaluate."""
    return layout.__dict__.setdefault("_blocks", {})


def block_of(c: Layout, process: int, owners: Sequence[int], shards: Sequence[int]) -> Block | None:
    """The owners' queries, and the shards' keys, that a process uses; None if no pair attends."""
    p = c.problem
    at_q = np.concatenate([c.queries.positions[i][c.query_rows(process, i)] for i in owners])
    at_k = np.concatenate([c.keys.positions[i][c.needed_keys(process, i)] for i in shards])
    queries, keys = _ascending(at_q), _ascending(at_k)
    at_q, at_k = at_q[queries], at_k[keys]
    rule = part_of_heads(c.mask, c.grid.head_parts, c.part(process)).rule
    if not rule.is_full:
        live = attending_queries(rule, at_q, at_k, p.n_q, p.n_k)
        if len(live) < len(at_q):
            kept = row_index(Shape(at_q, 1), live)
            queries = np.arange(len(at_q))[queries][kept] if isinstance(queries, np.ndarray) else kept
            at_q = live
    own = selected(rule, at_q, at_k, p.n_q, p.n_k)
    return None if own is None else Block(queries, keys, Mask(own), at_q, at_k)


def part_of_heads(mask: Mask, parts: int, part: int) -> Mask:
    """The mask of one of several equal parts of the heads."""
    if not mask.lead or mask.lead[-1] == 1 or parts == 1:
        return mask
    rules, index = planes(mask.rule)
    own = np.split(index, parts, axis=-1)[part]
    return Mask(Stack.of([rules[i] for i in own.ravel()], own.shape))


def _ascending(positions: np.ndarray) -> Any:
    """The index that sorts positions in ascending order."""
    return slice(None) if (np.diff(positions) > 0).all() else np.argsort(positions)


def _bias_index(bias: Tensor, block: Block) -> tuple[Any, Any]:
    """The rows and columns of a process's bias that belong to a block; all where the bias is broadcast."""
    rows = slice(None) if bias.shape[-2] == 1 else _index(block.queries)
    if bias.shape[-1] == 1:
        return rows, slice(None)
    first, last = int(block.at_keys[0]), int(block.at_keys[-1])
    consecutive = last - first + 1 == len(block.at_keys)
    return rows, slice(first, last + 1) if consecutive else torch.from_numpy(block.at_keys)


def _index(rows: Any) -> Any:
    return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


def _stacked(tensors: Tensors, array: str) -> Tensor:
    """The concatenated rows of all shards of an array."""
    parts = [x for name, x in tensors.items() if name.array == array]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _by_shard(names: Sequence[Part], writes: Shapes, rows: Any) -> list[tuple[Part, Any, Any]]:
    """Divide the rows that a kernel computed among the blocks `names`.

    rows: the index of the computed rows in the concatenated rows of these blocks. Returns (name, rows within the block,
    places of these rows in the kernel's result) for each block with computed rows.
    """
    total = sum(len(writes[name].rows) for name in names)
    if len(names) == 1:
        return [(names[0], _index(rows), slice(None))]
    computed = np.arange(total)[rows]
    shards, begin = [], 0
    for name in names:
        end = begin + len(writes[name].rows)
        places = np.flatnonzero((begin <= computed) & (computed < end))
        if len(places):
            shards.append((name, _index(computed[places] - begin), _index(places)))
        begin = end
    return shards


def _merge_into(out: Tensor, lse: Tensor, rows: Any, new: Tensor, new_lse: Tensor) -> None:
    """Merge attention on further keys into the results (out, lse) of some rows, in place."""
    old = lse[..., rows, :]
    both = torch.logaddexp(old, new_lse)
    safe = torch.where(both == float("-inf"), 0.0, both)
    kept, added = (old - safe).exp_(), (new_lse - safe).exp_()
    if isinstance(rows, slice):
        out[..., rows, :].mul_(kept).add_(new * added)
    else:
        out[..., rows, :] = out[..., rows, :] * kept + new * added
    lse[..., rows, :] = both
