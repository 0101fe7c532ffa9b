"""Attention on a grid of processes, forward and backward: the order in which blocks move and are computed.

Queries go to the processes of their row and keys to the processes of their column (for each part of the heads). Partial
results go back to the owners of their rows. All schedules of the table in `redblue.schedules.network` are this program
on grids of different shapes.

Order: while a process computes with a unit of keys, the next unit is on its way; at the last unit, the results for
other processes are computed first and are on their way while the process computes its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from redblue.machine.network import Message, Network, Shape
from redblue.schedules.network.key_sums import finish_key_sums, move_key_sums
from redblue.schedules.network.layout import KEY_SUMS, WHOLE, Layout, Part

KEYS = ("k", "v")
GRADIENTS = ("dq", "dk", "dv")


def forward(net: Network, c: Layout) -> None:
    """Inputs: Part("q" | "k" | "v", p, part) of each process p. Outputs: Part("out" | "lse", p, WHOLE)."""
    _gather_queries(net, c, ("q",))
    for step in _key_steps(net, c):
        for own, last in _phases(c, step):
            for p in net.here:
                for unit in _units(c, p, own):
                    _attend(net, c, p, unit, step)
            if last:
                _results_home(net, c, own, ("out_sum", "lse"))
    for p in net.here:
        reads = [*_results(c, p, "out_sum"), *_results(c, p, "lse")]
        names = Part("out", p, WHOLE), Part("lse", p, WHOLE)
        net.apply(p, "merge", reads, _shapes(c, names, c.all_rows(p, False)), layout=c)
        net.drop(p, reads)


def backward(net: Network, c: Layout) -> None:
    """Gradients of sum(dout * out) + sum(dlse * lse).

    Inputs: Part("q" | "k" | "v" | "dout" | "lse" | "delta", p, part) of each process p; delta is the sum of dout * out
    over a row, minus dlse. Outputs: Part("dq" | "dk" | "dv", p, WHOLE).
    """
    totals = {p: [Part(f"{array}_sum", p, WHOLE) for array in GRADIENTS] for p in net.here}
    for p, names in totals.items():
        whole = {name: c.shape(name, c.all_rows(p, name.array != "dq_sum")) for name in names}
        net.apply(p, "zeros", [], whole, layout=c)
    _gather_queries(net, c, ("q", "dout", "lse", "delta"))
    for step in _key_steps(net, c):
        for p in net.here:
            _start_sums(net, c, p, step)
        for own, last in _phases(c, step):
            for p in net.here:
                for unit in _units(c, p, own):
                    _attend_backward(net, c, p, unit, step)
            if last:
                _results_home(net, c, own, ("dq_sum",))
        move_key_sums(net, c, step)
    finish_key_sums(net, c)
    for p, names in totals.items():
        reads = _results(c, p, "dq_sum")
        net.apply(p, "add", [names[0], *reads], {names[0]: c.shape(names[0], c.all_rows(p, False))}, layout=c)
        net.drop(p, reads)
        for total in names:
            final = Part(total.array[:2], p, WHOLE)
            net.apply(p, "round", [total], {final: c.shape(final, c.all_rows(p, total.array != "dq_sum"))})
        net.drop(p, names)


# Queries and results -------------------------------------------------------------------------------------------------


def _phases(c: Layout, step: int) -> Iterator[tuple[bool, bool]]:
    """Yield the two phases of a step in order, each as (own, last).

    own: whether the phase computes with the queries of the process's own node, or with those of the other nodes of its
    row. last: whether this is the last step.
    """
    last = step == c.steps - 1
    for own in (False, True) if last and step else (True, False):
        yield own, last


def _units(c: Layout, process: int, own: bool) -> list[tuple[int, ...]]:
    return c.own_queries(process) if own else c.other_queries(process)


def _gather_queries(net: Network, c: Layout, arrays: Sequence[str]) -> None:
    """Send rows of queries to the processes of their row that compute with them."""
    net.exchange(
        [
            Message(owner, p, Part(array, owner, c.part(p)), c.query_rows(p, owner))
            for p in range(net.processes)
            for own in (True, False)
            for unit in _units(c, p, own)
            for owner in unit
            if owner != p and net.involves(owner, p)
            for array in arrays
        ]
    )


def _results_home(net: Network, c: Layout, own: bool, arrays: Sequence[str]) -> None:
    """Send the results for other processes' queries to these processes, rounded if no other process adds to them."""
    messages = []
    for p in range(net.processes):
        for unit in _units(c, p, own):
            for owner in unit:
                if owner == p or not net.involves(owner, p):
                    continue
                rows = c.query_rows(p, owner)
                for array in arrays:
                    name = _sent(c, array, owner, p)
                    if name.array != array and len(rows) and p in net.here:
                        net.apply(p, "round", [Part(array, owner, c.part(p), p)], {name: c.shape(name, rows)})
                    messages.append(Message(p, owner, name, rows))
    net.exchange(messages)
    for p in net.here:
        others = [owner for unit in _units(c, p, own) for owner in unit if owner != p]
        held = ("q", "dout", "delta", "lse")
        net.drop(p, [Part(array, owner, c.part(p)) for owner in others for array in held])
        net.drop(p, [_sent(c, array, owner, p) for owner in others for array in arrays])
        net.drop(p, [Part(array, owner, c.part(p), p) for owner in others for array in arrays])


def _sent(c: Layout, array: str, owner: int, maker: int) -> Part:
    """The name under which a maker sends a result to its owner."""
    rounded = array.endswith("_sum") and c.whole_queries
    return Part(array.removesuffix("_sum") if rounded else array, owner, c.part(maker), maker)


def _results(c: Layout, owner: int, array: str) -> list[Part]:
    """The names of all partial results for the queries of a process, in the order in which they are added."""
    return [
        Part(array, owner, c.part(maker), maker) if maker == owner else _sent(c, array, owner, maker)
        for maker in c.query_makers(owner)
        if len(c.query_rows(maker, owner))
    ]


# Keys ----------------------------------------------------------------------------------------------------------------


def _key_steps(net: Network, c: Layout) -> Iterator[int]:
    """Yield each step after its keys and the keys of the next step have been sent."""
    _send_keys(net, c, 0)
    for step in range(c.steps):
        if step + 1 < c.steps:
            _send_keys(net, c, step + 1)
        yield step
        for p in net.here:
            others = [shard for shard in c.keys_at(p, step) if shard != p]
            net.drop(p, [Part(array, shard, c.kv_part(p)) for shard in others for array in KEYS])


def _send_keys(net: Network, c: Layout, step: int) -> None:
    """Send the keys of a step to all processes: from their owners, or from the ring's process before."""
    passed = c.travel == "ring" and step > 0
    messages = []
    for p in range(net.processes):
        for shard in c.keys_at(p, step):
            source = c.neighbour(p, -1) if passed else shard
            if source != p and net.involves(source, p):
                rows = c.passed_keys(p, step, shard) if c.travel == "ring" else c.needed_keys(p, shard)
                messages += [Message(source, p, Part(array, shard, c.kv_part(p)), rows) for array in KEYS]
    net.exchange(messages)


# Computing -----------------------------------------------------------------------------------------------------------


def _attend(net: Network, c: Layout, p: int, unit: Iterable[int], step: int) -> None:
    """Compute the attention of a unit of queries with the keys of a step, and merge it into the results so far."""
    owners, shards = _live(c, p, unit, step)
    if not owners or (step and not shards):
        return
    part, kv_part = c.part(p), c.kv_part(p)
    queries, keys, values = _names("q", owners, part), _names("k", shards, kv_part), _names("v", shards, kv_part)
    writes = {
        name: c.shape(name, c.query_rows(p, name.shard))
        for array in ("out_sum", "lse")
        for name in _names(array, owners, part, p)
    }
    reads = [*queries, *keys, *values, *(writes if step else ())]
    net.apply(p, "attend", reads, writes, layout=c, process=p, owners=owners, shards=shards, first=not step)


def _start_sums(net: Network, c: Layout, p: int, step: int) -> None:
    """Make zeros for the gradients that a process adds up: of a step's keys and, before the first step, of queries."""
    if not step:
        for owner in (owner for own in (True, False) for unit in _units(c, p, own) for owner in unit):
            name = Part("dq_sum", owner, c.part(p), p)
            _zeros(net, c, p, {name: c.shape(name, c.query_rows(p, owner))})
    for shard in c.keys_at(p, step):
        for array in KEY_SUMS:
            name = Part(array, shard, c.part(p), p)
            _zeros(net, c, p, {name: c.shape(name, c.needed_keys(p, shard))})


def _zeros(net: Network, c: Layout, p: int, writes: dict[Part, Shape]) -> None:
    net.apply(p, "zeros", [], {name: shape for name, shape in writes.items() if len(shape.rows)}, layout=c)


def _attend_backward(net: Network, c: Layout, p: int, unit: Iterable[int], step: int) -> None:
    """Add the gradients of a unit of queries with the keys of a step to the sums so far."""
    owners, shards = _live(c, p, unit, step)
    if not owners or not shards:
        return
    part, kv_part = c.part(p), c.kv_part(p)
    reads = [name for array in ("q", "dout", "lse", "delta") for name in _names(array, owners, part)]
    reads += [name for array in KEYS for name in _names(array, shards, kv_part)]
    sums = _names("dq_sum", owners, part, p)
    key_sums = [name for array in KEY_SUMS for name in _names(array, shards, part, p)]
    writes = {name: c.shape(name, c.query_rows(p, name.shard)) for name in sums}
    writes |= {name: c.shape(name, c.needed_keys(p, name.shard)) for name in key_sums}
    net.apply(p, "attend_backward", [*reads, *writes], writes, layout=c, process=p, owners=owners, shards=shards)


def _live(c: Layout, p: int, unit: Iterable[int], step: int) -> tuple[list[int], list[int]]:
    """The shards of a unit of queries, and of a step's keys, from which a process uses at least one row."""
    owners = [owner for owner in unit if len(c.query_rows(p, owner))]
    return owners, [shard for shard in c.keys_at(p, step) if len(c.needed_keys(p, shard))]


def _names(array: str, shards: Iterable[int], part: int, maker: int = WHOLE) -> list[Part]:
    return [Part(array, shard, part, maker) for shard in shards]


def _shapes(c: Layout, names: Iterable[Part], rows: np.ndarray) -> dict[Part, Shape]:
    return {name: c.shape(name, rows) for name in names}
