"""The attention of a diffusion U-Net: self-attention over pixels and cross-attention to a prompt, under rb.sdpa().

    python examples/diffusion_unet.py --size 64 --width 64 --steps 5

The U-Net is small, plain PyTorch, with random weights; it learns to predict the noise of random images. Its code does
not refer to redblue. A U-Net of diffusers works the same way: put `with rb.sdpa():` around its calls.
"""

from __future__ import annotations

import argparse

from measuring import at_least, check_close, measure, need, show

torch = need("torch", "redblue[torch]")
from torch import nn
from torch.nn.functional import interpolate, mse_loss, scaled_dot_product_attention, silu

import redblue as rb

TOKENS, TEXT = 77, 64  # tokens of the prompt, and features of each token


class Attention(nn.Module):
    """Attention of pixels to a context: the pixels themselves, or the prompt."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(context, width), nn.Linear(context, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(x), self.k(context), self.v(context))
        )
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A residual convolution that depends on the diffusion time, then self- and cross-attention."""

    def __init__(self, inside: int, width: int, heads: int = 2) -> None:
        super().__init__()
        self.convolution, self.second = nn.Conv2d(inside, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.shortcut, self.time = nn.Conv2d(inside, width, 1), nn.Linear(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.self_attention, self.cross_attention = Attention(width, width, heads), Attention(width, TEXT, heads)

    def forward(self, x, time, prompt):
        hidden = silu(self.convolution(x)) + self.time(time)[:, :, None, None]
        x = self.shortcut(x) + self.second(silu(hidden))
        pixels = x.flatten(2).transpose(1, 2)
        normed = self.norms[0](pixels)
        pixels = pixels + self.self_attention(normed, normed)
        pixels = pixels + self.cross_attention(self.norms[1](pixels), prompt)
        return pixels.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """A U-Net of two resolutions: blocks before, at and after the lower one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.middle = Block(width, width), Block(width, 2 * width)
        self.up = Block(3 * width, width)

    def forward(self, x, time, prompt):
        angles = time[:, None] * torch.logspace(0, -3, 16)
        time = torch.cat([angles.sin(), angles.cos()], dim=1)
        high = self.down(self.enter(x), time, prompt)
        low = self.middle(interpolate(high, scale_factor=0.5), time, prompt)
        return self.leave(self.up(torch.cat([high, interpolate(low, scale_factor=2.0)], dim=1), time, prompt))


def train(size: int, width: int, batch: int, steps: int):
    """Return the losses, and the gradients of the first step."""
    torch.manual_seed(0)
    model, losses, first = UNet(width), [], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, prompt = torch.randn(batch, 3, size, size), torch.randn(batch, TOKENS, TEXT)
    for _ in range(steps):
        noise, time = torch.randn_like(images), torch.rand(batch)
        share = time[:, None, None, None]
        loss = mse_loss(model(images * (1 - share) + noise * share, 1000 * time, prompt), noise)
        optimizer.zero_grad()
        loss.backward()
        first = first or [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), torch.cat([gradient.flatten() for gradient in first or []])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=at_least(2, 2), default=32, help="height and width of the images, an even number"
    )
    parser.add_argument(
        "--width", type=at_least(2, 2), default=32, help="channels at the full resolution, an even number"
    )
    parser.add_argument("--batch", type=at_least(1), default=2, help="images per step")
    parser.add_argument("--steps", type=at_least(1), default=3, help="steps of training")
    options = parser.parse_args()

    sizes = options.size, options.width, options.batch, options.steps
    train(*sizes[:3], 1)  # warm-up: PyTorch prepares its convolutions at the first step
    with rb.sdpa() as used:
        ours = measure(lambda: train(*sizes))
    theirs = measure(lambda: train(*sizes))
    print(f"{options.size**2:,} pixels attend each other, and {TOKENS} tokens; {used}")
    show("redblue", ours)
    show("PyTorch", theirs)
    check_close("losses", ours.result[0], theirs.result[0], 1e-3)
    check_close("gradients of the first step", ours.result[1], theirs.result[1], 1e-3)


if __name__ == "__main__":
    main()
