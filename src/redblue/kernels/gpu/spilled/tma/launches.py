"""The launches of the spilling schedules with TMA, for plain scores under no mask or a causal band."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from redblue.base.integers import ceil_div
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.planning.by_tma import Choice, Tile
from redblue.kernels.gpu.spilled.deltas import deltas_run
from redblue.kernels.gpu.spilled.tma.redo import redo
from redblue.kernels.gpu.spilled.tma.sums import key_sums, row_sums
from redblue.kernels.gpu.spilled.tma.tiles import p_and_ds, references, score_tiles
from redblue.kernels.gpu.spilled.unattended import without_unattended_keys

ALIGNED = 16  # rows of P and dS start at multiples of this number of 16-bit elements
DELTA_ROWS = 32
FIRST_KEYS = 64  # a row's reference is its largest score among this many first keys
LIMITS = {torch.bfloat16: 2.0**60, torch.float16: 2.0**15}  # limit of a row's sum of P, so that P V does not overflow


def forward(task: Task, choice: Choice) -> list[Run]:
    """The launches that write task.out and task.lse."""
    pieces = pieces_of(without_unattended_keys(task), choice)
    first = Call.of(pieces[0], choice)
    sizes, streams, empty = first.task.sizes, first.at_once, task.lse.new_empty
    p = first.spilled(streams)
    level = empty(streams * sizes.n_q)
    sums = empty(streams * ceil_div(sizes.n_k, choice.p.cols) * sizes.n_q)
    flags = empty(streams * ceil_div(sizes.n_q, choice.row.rows), dtype=torch.int32)
    runs = []
    for place in first.places(streams):
        for piece in pieces:
            call = Call.of(piece, choice)
            spilled = p[:, : piece.sizes.n_q]
            runs += [
                call.references(level, place),
                call.tiles("p", piece.q, piece.k, spilled, spilled, level, sums, place),
                call.rows(spilled, piece.v, piece.out, place, (level, sums, piece.lse, flags)),
                call.redo(flags, place),
            ]
    return runs


def backward(task: Task, choice: Choice) -> list[Run]:
    """The launches that write task.delta, dq, dk and dv."""
    task = without_unattended_keys(task)
    pieces = pieces_of(task, choice)
    first = Call.of(pieces[0], choice)
    streams = first.at_once
    all_p, all_ds = first.spilled(streams), first.spilled(streams)
    running = {name: first.running(getattr(task, name), streams) if len(pieces) > 1 else None for name in ("dk", "dv")}
    runs = [deltas_run(task, DELTA_ROWS, 4, 2)]
    for place in first.places(streams):
        for i, piece in enumerate(pieces):
            call, p, ds = Call.of(piece, choice), all_p[:, : piece.sizes.n_q], all_ds[:, : piece.sizes.n_q]
            if choice.ds is None:
                runs.append(call.both(p, ds, place))
            else:
                runs.append(call.tiles("p", piece.q, piece.k, p, p, piece.lse, None, place))
                runs.append(call.tiles("ds", piece.dout, piece.v, p, ds, piece.lse, None, place))
            order = place | {"begun": int(i > 0), "ended": int(i + 1 == len(pieces))}
            runs.append(call.keys(p, piece.dout, task.dv, 1.0, order, running["dv"]))
            runs.append(call.rows(ds, piece.k, piece.dq, place, None))
            runs.append(call.keys(ds, piece.q, task.dk, call.scale, order, running["dk"]))
    return runs


def pieces_of(task: Task, choice: Choice) -> list[Task]:
    """The task cut into pieces of at most choice.queries queries."""
    n_q, size = task.sizes.n_q, choice.queries or task.sizes.n_q
    if size >= n_q:
        return [task]
    pieces = []
    for first in range(0, n_q, size):
        part = slice(first, min(first + size, n_q))
        rows = {name: getattr(task, name) for name in ("q", "out", "dout", "dq", "lse", "delta")}
        cut = {name: x if x is None else x[:, :, part] for name, x in rows.items()}
        sizes = task.sizes._replace(n_q=part.stop - first)
        pieces.append(replace(task, sizes=sizes, end=None if task.end is None else task.end + first, **cut))
    return pieces


@dataclass(frozen=True)
class Call:
    """One call's launches, as methods. Streams are query heads; a key head may be shared by several."""

    task: Task
    choice: Choice
    scale: float
    common: dict[str, Any]

    @staticmethod
    def of(task: Task, choice: Choice) -> Call:
        sizes = task.sizes
        band = task.end is not None and task.end < sizes.n_k
        scale = task.record.numbers(sizes)["scale"]
        common = {
            "scale": scale,
            "heads": task.q.shape[1],
            "n_q": sizes.n_q,
            "n_k": sizes.n_k,
            "end": task.end if band else 0,
            "line": task.lse.stride(1) if task.q.shape[1] > 1 else task.lse.stride(0),  # from stream to stream
            "BAND": band,
        }
        return Call(task, choice, scale, common)

    @property
    def streams(self) -> int:
        return self.task.q.shape[0] * self.task.q.shape[1]

    @property
    def at_once(self) -> int:
        """The number of heads of a launch: a multiple of the heads that share a key head."""
        group = self.task.sizes.group
        return min(ceil_div(self.choice.streams, group) * group, self.streams)

    @property
    def tall(self) -> int:
        """Rows of the blocks that are computed completely (TALL of tiles_of in tiles.py)."""
        c = self.choice
        return max(c.p.rows, (c.ds or c.p).rows, c.row.rows, c.key.depth)

    @property
    def long(self) -> int:
        """Keys of the blocks that are computed completely (LONG of tiles_of in tiles.py)."""
        c = self.choice
        return max(c.p.cols, (c.ds or c.p).cols, c.row.depth, c.key.rows)

    def places(self, streams: int) -> list[dict[str, int]]:
        """The heads of each launch."""
        return [
            {"stream": first, "streams": min(streams, self.streams - first)}
            for first in range(0, self.streams, streams)
        ]

    def spilled(self, streams: int) -> Tensor:
        """Memory for P or dS of `streams` heads."""
        sizes = self.task.sizes
        pitch = ceil_div(sizes.n_k, ALIGNED) * ALIGNED
        return self.task.q.new_empty(streams, sizes.n_q, pitch)[..., : sizes.n_k]

    def references(self, level: Tensor, place: dict[str, int]) -> Run:
        t, sizes = self.choice.p, self.task.sizes
        rows = min(t.rows, 128)
        arguments = self.common | place | {
            "q": described(self.task.q, rows, t.depth),
            "k": described(self.task.k, FIRST_KEYS, t.depth),
            "reference": level,
            "GROUP": sizes.group,
            "ROWS": rows,
            "KEYS": FIRST_KEYS,
            "SLICES": ceil_div(sizes.d, t.depth),
            "DEPTH": t.depth,
        }  # fmt: skip
        return Run(references, (ceil_div(sizes.n_q, rows) * place["streams"],), arguments, 4, 3)

    def tiles(
        self, kind: str, q: Any, k: Any, p: Tensor, to: Tensor, level: Tensor, sums: Tensor | None, place: Any
    ) -> Run:
        t = self.choice.p if kind == "p" else self.choice.ds
        assert t
        per_pair, tiles = self._tiles(t)
        tiles *= place["streams"]
        arguments = self.common | place | {
            "q": described(q, t.rows, t.depth),
            "k": described(k, t.cols, t.depth),
            "p": described(p, t.rows, t.cols // t.parts),
            "ds": None if kind == "p" else described(to, t.rows, t.cols // t.parts),
            "level": level,
            "sums": sums,
            "delta": self.task.delta if kind == "ds" else None,
            "early": p if kind == "ds" and t.early else None,
            "pitch": p.stride(1),
            "apart": p.stride(0),
            "per_pair": per_pair,
            "KIND": kind,
            "GROUP": self.task.sizes.group,
            "ROWS": t.rows,
            "COLS": t.cols,
            "TALL": self.tall,
            "LONG": self.long,
            "SLICES": ceil_div(q.shape[-1], t.depth),
            "DEPTH": t.depth,
            "PARTS": t.parts,
            "FLATTEN": t.resident > 0,
        }  # fmt: skip
        programs = min(tiles, t.resident * self.choice.multiprocessors) if t.resident else tiles
        return Run(score_tiles, (programs,), arguments, t.warps, t.stages)

    def both(self, p: Tensor, ds: Tensor, place: Any) -> Run:
        t, task = self.choice.p, self.task
        per_pair, tiles = self._tiles(t)
        arguments = self.common | place | {
            "q": described(task.q, t.rows, t.depth),
            "k": described(task.k, t.cols, t.depth),
            "dout": described(task.dout, t.rows, t.depth),
            "v": described(task.v, t.cols, t.depth),
            "p": described(p, t.rows, t.cols),
            "ds": described(ds, t.rows, t.cols // t.parts),
            "lse": task.lse,
            "delta": task.delta,
            "per_pair": per_pair,
            "GROUP": task.sizes.group,
            "ROWS": t.rows,
            "COLS": t.cols,
            "TALL": self.tall,
            "LONG": self.long,
            "SLICES": ceil_div(task.sizes.d, t.depth),
            "SLICES_V": ceil_div(task.sizes.d_v, t.depth),
            "DEPTH": t.depth,
            "PARTS": t.parts,
        }  # fmt: skip
        return Run(p_and_ds, (tiles * place["streams"],), arguments, t.warps, t.stages)

    def _tiles(self, t: Tile) -> tuple[int, int]:
        """The number of tiles of two paired blocks of rows (block_of in tiles.py), and the number of tiles of a stream.

        Without a band, blocks are not paired, and the first number counts the tiles of one block.
        """
        sizes, end = self.task.sizes, self.common["end"]
        blocks = ceil_div(sizes.n_q, t.rows)
        if not self.common["BAND"]:
            per_pair = ceil_div(sizes.n_k, t.cols)
            return per_pair, blocks * per_pair
        last = [min((b * t.rows // self.tall + 1) * self.tall, sizes.n_q) - 1 for b in range(blocks)]
        keys = [ceil_div(max(0, min(sizes.n_k, row + end)), self.long) * self.long for row in last]
        tiles = [ceil_div(min(sizes.n_k, x), t.cols) for x in keys]
        pairs = ceil_div(blocks, 2)
        per_pair = max(1, max(tiles[b] + tiles[blocks - 1 - b] for b in range(pairs)))
        return per_pair, pairs * per_pair

    def rows(self, spilled: Tensor, other: Tensor, result: Any, place: Any, normed: Any) -> Run:
        t, sizes = self.choice.row, self.task.sizes
        level, sums, lse, flags = normed or (None, None, None, None)
        features = result.shape[-1]
        arguments = self.common | place | {
            "spilled": described(spilled, t.rows, t.depth),
            "other": described(other, t.depth, t.cols),
            "result": described(result, t.rows, t.cols),
            "level": level,
            "sums": sums,
            "lse": lse,
            "flags": flags,
            "features": features,
            "GROUP": sizes.group,
            "ROWS": t.rows,
            "FEATURES": t.cols,
            "DEPTH": t.depth,
            "COLS": self.choice.p.cols,
            "LIMIT": LIMITS[spilled.dtype],
        }  # fmt: skip
        tiles = ceil_div(sizes.n_q, t.rows) * ceil_div(features, t.cols)
        return Run(row_sums, (tiles * place["streams"],), arguments, t.warps, t.stages)

    def running(self, result: Any, streams: int) -> Tensor:
        """Memory for the sums over pieces of the key heads of a launch."""
        kv_heads = streams // self.task.sizes.group
        return self.task.lse.new_empty(kv_heads, *result.shape[-2:])

    def keys(self, spilled: Tensor, other: Any, result: Any, scale: float, order: Any, running: Any) -> Run:
        t, sizes = self.choice.key, self.task.sizes
        features = result.shape[-1]
        arguments = self.common | order | {
            "scale": scale,
            "running": running,
            "spilled": described(spilled, t.depth, t.rows),
            "other": described(other, t.depth, t.cols),
            "result": described(result, t.rows, t.cols),
            "features": features,
            "GROUP": sizes.group,
            "KEYS": t.rows,
            "FEATURES": t.cols,
            "DEPTH": t.depth,
            "TALL": self.tall,
        }  # fmt: skip
        tiles = ceil_div(sizes.n_k, t.rows) * ceil_div(features, t.cols)
        return Run(key_sums, (tiles * order["streams"] // sizes.group,), arguments, t.warps, t.stages)

    def redo(self, flags: Tensor, place: Any) -> Run:
        task, sizes, rows, depth, features = self.task, self.task.sizes, self.choice.row.rows, 64, 128
        arguments = self.common | place | {
            "q": described(task.q, rows, depth),
            "k": described(task.k, depth, depth),
            "v": described(task.v, depth, features),
            "out": described(task.out, rows, features),
            "lse": task.lse,
            "flags": flags,
            "features": sizes.d_v,
            "GROUP": sizes.group,
            "ROWS": rows,
            "KEYS": depth,
            "FEATURES": features,
            "SLICES": ceil_div(sizes.d, depth),
            "DEPTH": depth,
        }  # fmt: skip
        tiles = ceil_div(sizes.n_q, rows) * ceil_div(sizes.d_v, features)
        return Run(redo, (tiles * place["streams"],), arguments, 8, 2)


def described(x: Any, rows: int, cols: int) -> Any:
    """A descriptor of tiles rows x cols of the last two dimensions."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # which Triton 3.3 lacks

    strides = [stride if size > 1 else ALIGNED for size, stride in zip(x.shape, x.stride(), strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides[:-1], 1], [1] * (x.dim() - 2) + [rows, cols])
