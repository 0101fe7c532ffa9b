"""Time the interfaces of other libraries to redblue, compared with its own function, at three sizes on this CPU.

The sizes are tiny, BERT's, and large. Every interface ("door") gets the same numbers in its own layout. Its output is
compared with the output of redblue's own function before anything is timed. Packed sequences are compared with
`attention_varlen`, all others with `attention`. Figures are the speed of the door over the speed of redblue's own
function, and the microseconds that the door adds. Rows of --json that are not measured again are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]
from torch.nn.attention.flex_attention import create_block_mask  # pyright: ignore[reportMissingImports]
from torch.nn.attention.varlen import varlen_attn  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.machine import facts_of_run
from benchmarks.common.options import add_rounds, chosen, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.common.results import Figure, Limit, Row, merged, read, write
from benchmarks.common.timing import THREADS, race, rate, ratio, shown_ratio, spread
from redblue.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func

KEPT = RESULTS / "doors.json"
MIN_RATIO = 0.97  # of the speed of redblue's own function, at the size of BERT
SECONDS = 0.02  # of each contender in each round: short, because the host changes its speed within a second
DIRECTIONS = ("forward", "training")


class Shape(NamedTuple):
    """A batch of equally long sequences, with or without a causal mask. limit: the least ratio required."""

    batch: int
    n: int
    heads: int
    d: int
    causal: bool
    limit: float | None

    def tensors(self, gradients: bool) -> list[torch.Tensor]:
        """q, k, v (batch, n, heads, d)."""
        draw = torch.Generator().manual_seed(0)
        shape = self.batch, self.n, self.heads, self.d
        return [torch.randn(shape, generator=draw).requires_grad_(gradients) for _ in range(3)]

    @property
    def starts(self) -> torch.Tensor:
        """The cumulative lengths of the packed sequences."""
        return torch.arange(self.batch + 1, dtype=torch.int32) * self.n


SHAPES = {
    "tiny, n 16": Shape(1, 16, 2, 64, causal=False, limit=None),  # the doors take most of the time
    "BERT, b 8, n 128": Shape(8, 128, 12, 64, causal=False, limit=MIN_RATIO),
    "causal, 16 heads, n 2048": Shape(1, 2048, 16, 64, causal=True, limit=None),
}
OWN, OWN_VARLEN = "attention", "attention_varlen"
# A function of q, k, v (batch, n, heads, d). Its output has the order of (batch, n, heads, d), in any shape.
Attend = Callable[..., torch.Tensor]


def heads_first(attend: Callable[..., torch.Tensor], **options: Any) -> Attend:
    """The given function of arrays (batch, heads, n, d), with these options."""
    return lambda *tensors: attend(*(x.transpose(1, 2) for x in tensors), **options).transpose(1, 2)


def packed(attend: Callable[..., Any], *arguments: Any, **options: Any) -> Attend:
    """The given function of packed sequences (total, heads, d), with these arguments."""
    return lambda *tensors: attend(*(x.flatten(0, 1) for x in tensors), *arguments, **options)


def own_calls(shape: Shape) -> dict[str, Attend]:
    """redblue's own calls, by name."""
    mask = rb.Mask.causal() if shape.causal else None
    return {
        OWN: heads_first(rb.attention, mask=mask),
        OWN_VARLEN: packed(rb.attention_varlen, shape.starts, mask=mask),
    }


def doors(shape: Shape) -> dict[str, tuple[str, Attend]]:
    """From the name of a door to the name of the own call that it is compared with, and its call."""
    starts, n = shape.starts, shape.n
    block_mask: Any = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, "cpu") if shape.causal else None
    sides = (-1, 0) if shape.causal else (-1, -1)
    padded_func: Any = partial(flash_attn_func, causal=shape.causal)
    return {
        "F.scaled_dot_product_attention, sdpa()": (
            OWN,
            heads_first(functional.scaled_dot_product_attention, is_causal=shape.causal),
        ),
        "flash_attn_func": (OWN, padded_func),
        "flex_attention": (OWN, heads_first(rb.flex_attention, block_mask=block_mask)),
        "flash_attn_varlen_func": (
            OWN_VARLEN,
            packed(flash_attn_varlen_func, starts, starts, n, n, causal=shape.causal),
        ),
        "varlen_attn, flash_ops()": (
            OWN_VARLEN,
            packed(varlen_attn, starts, starts, n, n, window_size=sides),
        ),
    }


@contextmanager
def opened() -> Iterator[None]:
    """A context in which PyTorch's functions call redblue."""
    with rb.sdpa(), rb.flash_ops():
        yield


def run(call: Attend, tensors: list[torch.Tensor], direction: str) -> list[torch.Tensor]:
    """The output and, in training, the gradients of its sum."""
    if direction == DIRECTIONS[0]:
        with torch.no_grad():
            return [call(*tensors)]
    out = call(*tensors)
    return [out, *torch.autograd.grad(out, tensors, torch.ones_like(out))]


def measure(title: str, direction: str, rounds: int) -> list[Row]:
    """One row per door."""
    shape = SHAPES[title]
    tensors = shape.tensors(direction != DIRECTIONS[0])
    owns, others = own_calls(shape), doors(shape)
    calls = owns | {name: call for name, (_, call) in others.items()}
    exact = [x.double() for x in run(owns[OWN], tensors, direction)]
    for name, call in calls.items():
        for x, y in zip(run(call, tensors, direction), exact, strict=True):
            torch.testing.assert_close(x.double().reshape(y.shape), y, atol=1e-4, rtol=0, msg=f"{name} is wrong")
    contenders = {
        name: partial(rate, partial(run, call, tensors, direction), 1, SECONDS) for name, call in calls.items()
    }
    rates = race(contenders, rounds)
    rows = []
    for name, (own, _) in others.items():
        figures = [Figure(f"{name} over {own}", ratio(rates, name, own), Limit(shape.limit))]
        more = spread([1e6 / a - 1e6 / b for a, b in zip(rates[name], rates[own], strict=True)])
        figures.append(Figure("added", more, Limit(), unit="us", at_most=True))
        kept = {each: rates[each] for each in (own, name)}
        rows.append(Row(direction, f"{title}: {name}", figures, kept, unit="calls/s"))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    head = "| size, door | | own function | speed of the door over own function, 95 % interval | added time |"
    lines = [head, "|---|---|---|---|---|"]
    for row in rows:
        added = row.figures[1].value
        own, door = row.rates
        speed = shown_ratio(row.rates, door, own)
        seconds = 1 / statistics.median(row.rates[own])
        cells = row.case, row.measure, f"{own}, {1e3 * seconds:.3g} ms", speed, f"{added.median:.0f} µs"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__)
    add_rounds(parser, 61)
    parser.add_argument("--only", default="", help="measure only sizes whose name contains this text")
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    options = parser.parse_args()
    sizes = chosen(parser, options.only, SHAPES)
    torch.set_num_threads(THREADS)
    with opened():
        rows = [row for title in sizes for direction in DIRECTIONS for row in measure(title, direction, options.rounds)]
    write(options.json, facts_of_run(torch=torch.__version__), merged(options.json, rows))
    print(table(read(options.json)[1]))


if __name__ == "__main__":
    main()
