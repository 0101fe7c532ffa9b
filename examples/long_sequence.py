"""Train attention on one long sequence in several processes. Each process holds some tokens and sends a few keys.

    torchrun --nproc-per-node 4 examples/long_sequence.py --tokens 65536 --window 1024
    python examples/long_sequence.py

The second command runs in one process. Rank 0 prints the loss of each step. Except for rounding, the loss does not
depend on the number of processes.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from measuring import at_least, need

torch = need("torch", "redblue[torch]")

import torch.distributed as dist

from redblue import Mask, distributed


def start() -> None:
    """Form a group with the other processes of torchrun, or alone without torchrun."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        meeting = os.path.join(tempfile.mkdtemp(), "meeting")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)


def train(tokens: int, window: int, steps: int, heads: int = 2, d: int = 32) -> list[float]:
    """Train one layer of attention to repeat the signal of `window // 2` tokens earlier. Return the losses."""
    mask, width = Mask.sliding_window(window), heads * d
    placement = distributed.best_placement(mask, tokens, dist.get_world_size())
    generator = torch.Generator().manual_seed(0)  # every process draws the whole array and keeps its part
    signal = torch.randn(tokens, width, generator=generator)
    wanted = signal.roll(window // 2, 0)
    signal, wanted = (distributed.shard(x, placement=placement) for x in (signal, wanted))
    weights = (torch.randn(3, width, width, generator=generator) / width**0.5).requires_grad_()
    optimizer, losses = torch.optim.Adam([weights], lr=3e-3), []
    for _ in range(steps):
        q, k, v = ((signal @ w).view(-1, heads, d).transpose(0, 1) for w in weights)
        out = distributed.attention(q, k, v, mask=mask, placement=placement)
        loss = (out.transpose(0, 1).flatten(1) - wanted).square().sum() / (tokens * width)
        optimizer.zero_grad()
        loss.backward()
        for total in (weights.grad, loss.detach()):  # each process has only the contribution of its own tokens
            dist.all_reduce(total)
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=at_least(8), default=4096)
    parser.add_argument("--window", type=at_least(2), default=64)
    parser.add_argument("--steps", type=at_least(1), default=5)
    arguments = parser.parse_args()
    start()
    losses = train(arguments.tokens, arguments.window, arguments.steps)
    if dist.get_rank() == 0:
        print("loss of each step:", *(f"{loss:.6f}" for loss in losses))
    dist.destroy_process_group()
