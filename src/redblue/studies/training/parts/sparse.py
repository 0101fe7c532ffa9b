"""The part `sparse`: the time of a training step under sparse masks, and of FlexAttention's forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from redblue.base.cpus import usable_cpus
from redblue.masks import Mask
from redblue.studies.training import attentions
from redblue.studies.training.flops import attention_share
from redblue.studies.training.model import Shape, made
from redblue.studies.training.names import FLEX, NONE, REDBLUE, SDPA
from redblue.studies.training.race import race

MODEL = {"layers": 1, "d_model": 256, "heads": 4, "symbols": 256, "answers": 10}
BLOCK = 64
SIZES = ((1024, 4, 3), (2048, 2, 3), (4096, 1, 3), (16_384, 1, 1))  # n, batch, rounds
MASKS = ("block-sparse", "window", "random")


def points(quick: bool) -> list[dict[str, Any]]:
    sizes = ((2048, 1, 3),) if quick else SIZES
    return [
        MODEL | {"n": n, "batch": batch, "rounds": rounds, "block": BLOCK, "kind": kind}
        for kind in ("forward", "step")
        for n, batch, rounds in sizes
    ]


def layout(n: int, block: int) -> np.ndarray:
    """The blocks of the pattern of the FlashAttention paper.

    They are a butterfly, the neighbours of the diagonal, and the first row and column.
    """
    blocks = -(-n // block)
    pattern = Mask.butterfly(1) | Mask.sliding_window(1, 1) | Mask.global_tokens([0])
    return pattern.to_dense(blocks, blocks)


class NotCompiled(Exception):
    """FlexAttention cannot be compiled on this machine."""


def masks(n: int, block: int) -> dict[str, Mask]:
    """Three masks of about the same density."""
    blocks = layout(n, block)
    beside = max(1, round(n * blocks.mean() / 2))
    return {
        "block-sparse": Mask.blocks(blocks, block),
        "window": Mask.sliding_window(beside, beside),
        "random": Mask.random_blocks(float(blocks.mean()), 0, block),
    }


def run(point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Time steps, or forward passes of attention alone; return one row with the seconds of every round."""
    torch.set_num_threads(usable_cpus())
    n, batch = point["n"], point["batch"]
    sparse_masks = masks(n, point["block"])
    density = {name: mask.density(n, n) for name, mask in sparse_masks.items()}
    if point["kind"] == "forward":
        try:
            return [point | {"seconds": forward_seconds(point, sparse_masks["block-sparse"]), "density": density}]
        except NotCompiled as error:
            reason = str(error).strip().splitlines()[0]
            return [point | {"skipped": f"{FLEX} does not compile here: {reason}"}]
    shape = Shape(point["layers"], point["d_model"], point["heads"], point["symbols"], n, point["answers"])
    model = made(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    symbols = torch.randint(point["symbols"], (batch, n))
    answers = torch.randint(point["answers"], (batch,))
    kinds = {f"{SDPA}, dense": attentions.masked(SDPA, None, None), f"{REDBLUE}, dense": by_redblue(None)}
    kinds |= {f"{REDBLUE}, {name}": by_redblue(mask) for name, mask in sparse_masks.items()} | {NONE: attentions.none}

    def step(attend: Any) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(symbols, attend).mean(1), answers).backward()
        optimizer.step()

    seconds = race({name: (lambda attend=attend: step(attend)) for name, attend in kinds.items()}, point["rounds"])
    share = attention_share(shape, batch * n, batch * n * n)
    return [point | {"seconds": seconds, "density": density, "flops_share": share}]


def by_redblue(mask: Mask | None) -> Any:
    """The attention of redblue under a mask."""
    return attentions.masked(REDBLUE, mask, None)


def forward_seconds(point: dict[str, Any], mask: Mask) -> dict[str, list[float]]:
    """The seconds of attention's forward pass: FlexAttention (compiled) and redblue, and PyTorch's SDPA without a mask.

    FlexAttention and redblue run under the block-sparse mask.
    """
    n, d = point["n"], point["d_model"] // point["heads"]
    q, k, v = (torch.randn(point["batch"], point["heads"], n, d) for _ in range(3))
    attend = attentions.masked(REDBLUE, mask, None)
    calls = {REDBLUE: lambda: attend(q, k, v), f"{SDPA}, dense": lambda: attentions.masked(SDPA, None, None)(q, k, v)}
    with torch.no_grad():
        flex = compiled_flex(point)
        try:
            out = flex(q, k, v)
        except RuntimeError as error:
            raise NotCompiled(str(error)) from error
        largest = float((out - attend(q, k, v)).abs().max())
        if largest > 1e-4:
            raise ValueError(f"FlexAttention's output differs from redblue's by {largest}")
        return race(calls | {FLEX: lambda: flex(q, k, v)}, point["rounds"])


def compiled_flex(point: dict[str, Any]) -> Any:
    """FlexAttention under the block-sparse mask, compiled; on CPUs it has no gradients."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    blocks = torch.from_numpy(layout(point["n"], point["block"]))
    n, edge = point["n"], point["block"]

    def attends(b: Any, h: Any, row: Any, col: Any) -> Any:
        return blocks[row // edge, col // edge]

    counts = blocks.sum(-1, dtype=torch.int32)[None, None]
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True).to(torch.int32)[None, None]
    none, full = torch.zeros_like(counts), (counts, order.clone())  # the same tensor twice does not compile
    whole = BlockMask.from_kv_blocks(none, order, *full, BLOCK_SIZE=edge, mask_mod=attends, seq_lengths=(n, n))
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=whole)
