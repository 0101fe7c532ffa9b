"""Train T5's relative position bias: one learned number for each head and each bucket of distances.

    python examples/t5_bias.py --n 1024 --steps 10

The model is an encoder like T5's in plain PyTorch, with random weights. If a bias needs a gradient, PyTorch's attention
on CPUs takes its slow path, which keeps all scores and probabilities. redblue computes them again in its backward pass,
and adds up the gradient of the bias in the same pass.
"""

from __future__ import annotations

import argparse
import math

from measuring import at_least, check_close, measure, need, show

torch = need("torch", "redblue[torch]")
from torch import nn

import redblue as rb

BUCKETS, FARTHEST = 32, 128


def buckets(n: int):
    """Return the bucket of each pair of positions, (n, n).

    Short distances have a bucket each, and longer distances share buckets of logarithmic width. Keys before and after
    the query have separate buckets.
    """
    distance = torch.arange(n) - torch.arange(n)[:, None]
    half, size = BUCKETS // 2, distance.abs()
    exact = half // 2
    scaled = torch.log(size.clamp(min=1) / exact) / math.log(FARTHEST / exact) * (half - exact)
    far = (exact + scaled.long()).clamp(max=half - 1)
    return (distance > 0) * half + torch.where(size < exact, size, far)


class Encoder(nn.Module):
    """Attention layers as in T5's encoder. All layers share one table of biases, and scores are not scaled."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding, self.bias = nn.Embedding(vocabulary, width), nn.Embedding(BUCKETS, heads)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        for linear in self.qkv:
            nn.init.normal_(linear.weight, std=width**-0.5 * (width // heads) ** -0.25)

    def forward(self, tokens, attend):
        x = self.embedding(tokens)
        bias = self.bias(buckets(tokens.shape[1])).permute(2, 0, 1)  # (heads, n, n), computed once
        for qkv, out, norm in zip(self.qkv, self.out, self.norms, strict=True):
            q, k, v = qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(attend(q, k, v, bias).transpose(1, 2).flatten(2))
        return x @ self.embedding.weight.T * x.shape[-1] ** -0.5


def ours(q, k, v, bias):
    return rb.attention(q, k, v, bias=bias, scale=1.0)


def theirs(q, k, v, bias):
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=1.0)


def train(attend, n: int, batch: int, steps: int):
    """Train a model to predict, at each position, the token three positions earlier.

    The tokens are random, so attention can find this token only by the bias. Returns the losses, and the gradient of
    the bias in the first step.
    """
    torch.manual_seed(0)
    model, losses, first = Encoder(64, 64, 4, 2), [], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        tokens = torch.randint(64, (batch, n))
        loss = nn.functional.cross_entropy(model(tokens, attend)[:, 3:].flatten(0, 1), tokens[:, :-3].flatten())
        optimizer.zero_grad()
        loss.backward()
        first = first if first is not None else model.bias.weight.grad.clone()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=at_least(4), default=512, help="tokens of a sequence")
    parser.add_argument("--batch", type=at_least(1), default=4, help="sequences per step")
    parser.add_argument("--steps", type=at_least(1), default=5, help="steps of training")
    options = parser.parse_args()

    sizes = options.n, options.batch, options.steps
    train(ours, *sizes[:2], 1)  # warm-up: the first step of a process is slower
    results = {
        name: measure(lambda attend=attend: train(attend, *sizes))
        for name, attend in (("redblue", ours), ("PyTorch", theirs))
    }
    for name, measured in results.items():
        show(name, measured)
    (losses, gradient), (plain_losses, plain_gradient) = (measured.result for measured in results.values())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    check_close("losses", losses, plain_losses, 1e-3)
    check_close("gradient of the bias in the first step", gradient, plain_gradient, 1e-3)


if __name__ == "__main__":
    main()
