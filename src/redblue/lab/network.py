"""Network schedules on arrays: the operations of their processes in NumPy, and a run that returns the real result."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from redblue.lab import reference
from redblue.machine.network import NumericNetwork, Shape, row_index
from redblue.schedules import network
from redblue.schedules.network.layout import COLUMNS, KEY_ARRAYS, WHOLE, Layout, Part

Arrays = Mapping[Part, np.ndarray]
Shapes = Mapping[Part, Shape]


def simulate(c: Layout, **arrays: np.ndarray) -> tuple[dict[str, np.ndarray], NumericNetwork]:
    """Run a layout's program on NumPy arrays (batch, heads, n, columns).

    arrays: q, k and v; for backward also dout, lse and delta, the last two (batch, heads, n, 1). Returns the outputs,
    put together again, and the machine with its counts.
    """
    net = NumericNetwork(c.grid.processes, OPERATIONS)
    for p in net.here:
        for name, shape in network.inputs(c, p).items():
            keys = name.array in KEY_ARRAYS
            own = arrays[name.array][..., (c.keys if keys else c.queries).positions[p], :]
            parts = c.kv_parts if keys else c.grid.head_parts
            net.put(p, name, shape, np.split(own, parts, axis=-3)[name.part])
    network.run(net, c)
    outputs = {}
    for array in network.OUTPUTS[c.problem.direction]:
        placement = c.keys if array in KEY_ARRAYS else c.queries
        parts = [net.arrays[p][Part(array, p, WHOLE)] for p in net.here]
        order = np.argsort(np.concatenate(placement.positions))
        outputs[array] = np.concatenate(parts, axis=-2)[..., order, :]
    return outputs, net


class Gathered(NamedTuple):
    """The operands of a process: rows of several shards, concatenated, in NumPy arrays."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    attends: np.ndarray  # (n_q, n_k) or (..., heads, n_q, n_k): True where a query attends a key


def _attend(
    shapes: Shapes, arrays: Arrays, writes: Shapes, layout: Layout, process: int, owners: Any, shards: Any, first: bool
) -> Arrays:
    x = _gathered(shapes, arrays, layout, process, owners, shards)
    new = reference.forward(x.q, x.k, x.v, x.attends, scale=layout.problem.d**-0.5)
    results: dict[Part, np.ndarray] = {}
    begin = 0
    for name, shape in writes.items():
        if name.array != "out_sum":
            continue
        log, rows = name._replace(array="lse"), slice(begin, begin + len(shape.rows))
        begin = rows.stop
        parts = [(new.out[..., rows, :], new.lse[..., rows, None])]
        results[name], results[log] = _merged([*parts, *([] if first else [(arrays[name], arrays[log])])])
    return results


def _attend_backward(
    shapes: Shapes, arrays: Arrays, writes: Shapes, layout: Layout, process: int, owners: Any, shards: Any
) -> Arrays:
    x = _gathered(shapes, arrays, layout, process, owners, shards)
    dout, lse, delta = (_stacked(arrays, array) for array in ("dout", "lse", "delta"))
    scale, group = layout.problem.d**-0.5, x.q.shape[-3] // x.k.shape[-3]
    k, v = (np.repeat(y, group, axis=-3) for y in (x.k, x.v))
    nothing = np.isneginf(lse)
    p = np.where(x.attends & ~nothing, np.exp(scale * (x.q @ np.swapaxes(k, -1, -2)) - np.where(nothing, 0, lse)), 0)
    ds = p * (dout @ np.swapaxes(v, -1, -2) - delta) * scale
    new = {
        "dq_sum": ds @ k,
        "dk_sum": _grouped(np.swapaxes(ds, -1, -2) @ x.q, group),
        "dv_sum": _grouped(np.swapaxes(p, -1, -2) @ dout, group),
    }
    results, begin = {}, dict.fromkeys(new, 0)
    for name, shape in writes.items():
        end = begin[name.array] + len(shape.rows)
        results[name] = arrays[name] + new[name.array][..., begin[name.array] : end, :]
        begin[name.array] = end
    return results


def _gathered(shapes: Shapes, arrays: Arrays, c: Layout, process: int, owners: Any, shards: Any) -> Gathered:
    """The queries of the owners and the keys of the shards that the process needs."""
    p = c.problem
    at_q = np.concatenate([c.queries.positions[i][c.query_rows(process, i)] for i in owners])
    needed = {i: c.needed_keys(process, i) for i in shards}
    at_k = np.concatenate([np.zeros(0, np.int64), *(c.keys.positions[i][rows] for i, rows in needed.items())])
    held = {
        name: x[..., row_index(shapes[name], needed[name.shard]), :] for name, x in arrays.items() if name.array in "kv"
    }
    q = _stacked(arrays, "q")
    heads = c.width("k", c.kv_parts) // (p.batch * p.d)
    k, v = (
        _stacked(held, array) if held else np.zeros((*q.shape[:-3], heads, 0, columns))
        for array, columns in (("k", p.d), ("v", p.d_v))
    )
    attends = p.mask.to_dense(p.n_q, p.n_k)[..., at_q[:, None], at_k]
    if attends.ndim > 2 and attends.shape[-3] > 1:
        attends = np.split(attends, c.grid.head_parts, axis=-3)[c.part(process)]
    return Gathered(q, k, v, attends)


def _stacked(arrays: Arrays, array: str) -> np.ndarray:
    return np.concatenate([x for name, x in arrays.items() if name.array == array], axis=-2)


def _grouped(x: np.ndarray, group: int) -> np.ndarray:
    """The sum over the query heads that share a key head."""
    *lead, heads, n, columns = x.shape
    return x.reshape(*lead, heads // group, group, n, columns).sum(axis=-3)


def _merged(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Attention on all keys, from the (out, lse) of several parts of the keys."""
    lse = functools.reduce(np.logaddexp, (own for _, own in parts))
    weights = [np.where(np.isneginf(own), 0.0, np.exp(own - np.where(np.isneginf(lse), 0.0, lse))) for _, own in parts]
    return sum(weight * out for weight, (out, _) in zip(weights, parts, strict=True)), lse  # pyright: ignore


def _merge(shapes: Shapes, arrays: Arrays, writes: Shapes, layout: Layout) -> Arrays:
    """The results of all heads for a process's queries, merged from the results of the processes that computed them."""
    (out, lse), rows = writes, next(iter(writes.values())).rows
    by_part: dict[int, list[Part]] = {}
    for name in arrays:
        if name.array != "lse":
            by_part.setdefault(name.part, []).append(name)
    outs, lses = [], []
    for part in range(layout.grid.head_parts):
        totals = Part("out_sum", out.shard, part), Part("lse", out.shard, part)
        sizes = [_array_shape(layout, name, len(rows)) for name in totals]
        parts = [(np.zeros(sizes[0]), np.full(sizes[1], -np.inf))]
        for name in by_part.get(part, []):
            log = name._replace(array="lse")
            whole = (
                _on_rows(arrays[name], shapes[name].rows, rows),
                _on_rows(arrays[log], shapes[log].rows, rows, -np.inf),
            )
            parts.append(whole)
        merged = _merged(parts)
        outs.append(merged[0])
        lses.append(merged[1])
    return {out: np.concatenate(outs, axis=-3), lse: np.concatenate(lses, axis=-3)}


def _on_rows(x: np.ndarray, own: np.ndarray, rows: np.ndarray, rest: float = 0.0) -> np.ndarray:
    """The array extended to `rows`; added rows hold `rest`."""
    if len(own) == len(rows):
        return x
    whole = np.full((*x.shape[:-2], len(rows), x.shape[-1]), rest, x.dtype)
    whole[..., np.searchsorted(rows, own), :] = x
    return whole


def _sum_rows(shapes: Shapes, arrays: Arrays, writes: Shapes) -> Arrays:
    ((total, shape),) = writes.items()
    return {total: sum(_on_rows(x, shapes[name].rows, shape.rows) for name, x in arrays.items())}  # pyright: ignore


def _add(shapes: Shapes, arrays: Arrays, writes: Shapes, layout: Layout) -> Arrays:
    """The total of a process's rows, plus the parts that several processes computed for some of its rows and heads."""
    ((total, shape),) = writes.items()
    whole = arrays[total].copy()
    for name, x in arrays.items():
        if name == total:
            continue
        parts = layout.grid.head_parts
        if name.array in KEY_ARRAYS:
            part = name.part * layout.kv_parts // parts
            parts = layout.kv_parts
        else:
            part = name.part
        np.split(whole, parts, axis=-3)[part][...] += _on_rows(x, shapes[name].rows, shape.rows)
    return {total: whole}


def _zeros(shapes: Shapes, arrays: Arrays, writes: Shapes, layout: Layout) -> Arrays:
    return {name: np.zeros(_array_shape(layout, name, len(shape.rows))) for name, shape in writes.items()}


def _round(shapes: Shapes, arrays: Arrays, writes: Shapes) -> Arrays:
    return dict(zip(writes, arrays.values(), strict=True))


def _array_shape(c: Layout, name: Part, rows: int) -> tuple[int, ...]:
    """(batch, heads, rows, columns) of a block."""
    p = c.problem
    columns = {"d": p.d, "d_v": p.d_v, "1": 1}[COLUMNS[name.array]]
    return p.batch, c.shape(name, np.zeros(1)).width // (p.batch * columns), rows, columns


OPERATIONS = {
    "attend": _attend,
    "attend_backward": _attend_backward,
    "merge": _merge,
    "sum_rows": _sum_rows,
    "add": _add,
    "zeros": _zeros,
    "round": _round,
}
