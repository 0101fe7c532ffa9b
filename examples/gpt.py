"""Train a small GPT on text with PyTorch's attention, the plain formula and redblue: the loss curves are the same.

    python examples/gpt.py --steps 100
    python examples/gpt.py --text novel.txt --n 2048 --layers 4 --d-model 768 --heads 12

The model reads bytes, so it needs no tokenizer. Without --text it reads the sources of Python's library, which every
machine has. The runs differ only in the function `attend`, which `Block.forward` calls. `redblue experiment training`
measures such runs with care; this file shows how to write one.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

from measuring import at_least, check_close, need

torch = need("torch", "redblue[torch]")

import redblue as rb

BYTES = 256  # number of symbols: each byte is one
F = torch.nn.functional


# 1. The attention, three ways. Each takes q, k and v of shape (batch, heads, n, d).


def formula(q, k, v):
    """The definition. It keeps all n x n scores of every head in memory, also in the backward pass."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


ATTENTIONS = {
    "PyTorch SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "formula": formula,
    "redblue": lambda q, k, v: rb.attention(q, k, v, mask=rb.Mask.causal()),
}


# 2. The model: GPT-2's architecture with fewer layers.


class Block(torch.nn.Module):
    """Attention, then a feed-forward layer; each normalises its input and adds its output to the stream."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(d_model) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(d_model, 3 * d_model), torch.nn.Linear(d_model, d_model)
        self.up, self.down = torch.nn.Linear(d_model, 4 * d_model), torch.nn.Linear(4 * d_model, d_model)

    def forward(self, x, attend):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = attend(q, k, v)  # (batch, heads, n, d): the only line that redblue changes
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(torch.nn.Module):
    def __init__(self, n: int, layers: int, d_model: int, heads: int) -> None:
        super().__init__()
        self.symbols, self.positions = torch.nn.Embedding(BYTES, d_model), torch.nn.Embedding(n, d_model)
        self.blocks = torch.nn.ModuleList(Block(d_model, heads) for _ in range(layers))
        self.norm, self.logits = torch.nn.LayerNorm(d_model), torch.nn.Linear(d_model, BYTES, bias=False)

    def forward(self, symbols, attend):
        x = self.symbols(symbols) + self.positions.weight[: symbols.shape[1]]
        for block in self.blocks:
            x = block(x, attend)
        return self.logits(self.norm(x))


# 3. The text: windows of n + 1 bytes. The model reads the first n bytes, and predicts the byte after each of them.


def read_text(path: Path | None) -> torch.Tensor:
    """Return the bytes of a file, or of the modules of Python's library."""
    files = [path] if path else sorted(Path(os.__file__).parent.glob("*.py"))
    try:
        text = b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}") from None
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batch_of(text, size: int, n: int, step: int):
    """Return the batch of a step. It depends only on the step, so all runs train on the same batches."""
    random = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - n, (size,), generator=random).tolist()
    windows = torch.stack([text[start : start + n + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


# 4. The training loop.


def train(text, attend, options):
    """Train from the same first weights on the same batches; return the losses and the seconds of each step."""
    torch.manual_seed(0)
    model = Gpt(options.n, options.layers, options.d_model, options.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), fused=True)
    losses, seconds = [], []
    for step in range(options.steps):
        start = time.perf_counter()
        inputs, targets = batch_of(text, options.batch, options.n, step)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            logits = model(inputs, attend)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return torch.tensor(losses), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file to learn from; the sources of Python's library if left out")
    parser.add_argument("--n", type=at_least(1), default=512, help="bytes of a window: the context")
    parser.add_argument("--batch", type=at_least(1), default=2, help="windows of a step")
    parser.add_argument("--steps", type=at_least(1), default=20, help="steps of training")
    parser.add_argument("--layers", type=at_least(1), default=2, help="layers of the model")
    parser.add_argument("--d-model", type=at_least(1), default=256, help="width of the model")
    parser.add_argument(
        "--heads", type=at_least(1), default=4, help="heads of attention, of which d-model is a multiple"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--bf16", action="store_true", help="run the model in bfloat16, under autocast")
    options = parser.parse_args()
    if options.d_model % options.heads:
        parser.error(f"--d-model must be a multiple of --heads, got {options.d_model} and {options.heads}")
    text = read_text(options.text)
    if len(text) <= options.n:
        parser.error(f"the text must be longer than --n {options.n}, got {len(text)} bytes")

    runs = {name: train(text, attend, options) for name, attend in ATTENTIONS.items()}
    base, _ = runs["PyTorch SDPA"]
    for name, (losses, seconds) in runs.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{name:13} loss {losses[0]:.4f} -> {losses[-1]:.4f}, {middle:.3f} s per step")
        if name != "PyTorch SDPA":
            # The runs round differently; training slowly amplifies the differences. bfloat16 has 8 significant bits.
            check_close(f"losses with {name}", losses, base, 0.1 if options.bf16 else 0.02)


if __name__ == "__main__":
    main()
