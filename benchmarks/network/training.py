"""Train a small GPT on one long sequence in several processes, and compare its losses with training in one process.

The tokens are bytes of this package's own sources. Each process holds a part of the sequence, in zigzag placement; the
gradients of the weights are summed over the processes.
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import redblue as rb
from benchmarks.common.options import at_least, parser_of
from benchmarks.network import local

LAYERS, WIDTH, HEADS = 2, 64, 2


def losses(n: int, window: int, steps: int) -> tuple[list[float], float]:
    """The loss of each step over all processes, and the seconds in total."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]
    from torch.nn import functional  # pyright: ignore[reportMissingImports]

    from redblue import distributed

    torch.manual_seed(0)
    linear = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: torch.randn(a, b) / a**0.5 for name, (a, b) in linear.items()} for _ in range(LAYERS)]
    embedding, positions = torch.randn(256, WIDTH) * 0.1, torch.randn(n, WIDTH) * 0.1
    weights = [embedding, *(weight for layer in layers for weight in layer.values())]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    mask = rb.Mask.sliding_window(window) if window else rb.Mask.causal()
    text = b"".join(path.read_bytes() for path in sorted(Path(rb.__file__).parent.rglob("*.py")))[: n + 1]
    if len(text) <= n:
        raise SystemExit(f"n must be less than {len(text):,}, the bytes of the sources")
    tokens = torch.tensor(list(text))

    def part(x: Any, dim: int = 0) -> Any:
        return distributed.shard(x, dim=dim, placement="zigzag")

    own, following, places = part(tokens[:-1]), part(tokens[1:]), part(positions)
    curve, begin = [], time.perf_counter()
    for _ in range(steps):
        x = embedding[own] + places
        for layer in layers:
            parts = functional.layer_norm(x, (WIDTH,)) @ layer["qkv"]
            q, k, v = parts.reshape(len(own), 3, HEADS, -1).permute(1, 2, 0, 3)[:, None]
            y = distributed.attention(q, k, v, mask=mask, placement="zigzag")
            x = x + y[0].transpose(0, 1).reshape(len(own), WIDTH) @ layer["out"]
            x = x + functional.gelu(functional.layer_norm(x, (WIDTH,)) @ layer["up"]) @ layer["down"]
        logits = functional.layer_norm(x, (WIDTH,)) @ embedding.T
        loss = functional.cross_entropy(logits, following, reduction="sum") / n
        optimizer.zero_grad()
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        curve.append(float(total))
    return curve, time.perf_counter() - begin


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--n", type=at_least(1), default=32768, help="tokens")
    parser.add_argument("--window", type=at_least(0), default=1024, help="0: all earlier tokens")
    parser.add_argument("--steps", type=at_least(1), default=20)
    parser.add_argument("--processes", type=at_least(1), default=4)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    curves = {}
    for size in (options.processes, 1):
        curves[size], seconds = local.run(losses, size, options.n, options.window, options.steps)[0]
        print(f"processes {size}: loss {curves[size][0]:.5f} to {curves[size][-1]:.5f}, {seconds:.0f} s", flush=True)
    difference = max(abs(a - b) for a, b in zip(*curves.values(), strict=True))
    print(f"largest difference of a step's loss: {difference:.1e}")
    if options.json:
        about = {"date": datetime.date.today().isoformat(), "n": options.n, "window": options.window}
        results = {"losses": curves, "largest_difference": difference}
        options.json.write_text(json.dumps(about | results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
