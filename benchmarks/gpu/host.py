"""Measure the host's time for calls on a GPU: with the launches of an earlier call, and launched anew.

`host` is the median time of a call that finds the GPU idle, until the call returns. `in succession` is the mean time of
calls without a pause: the larger one of the host's time and the GPU's time. --dry needs no GPU: it makes tiny calls
under Triton's interpreter, which keeps no launches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.options import console, parser_of
from redblue.base.terminal import table
from redblue.kernels.gpu import replay
from redblue.op.pytorch.paged import gpu as paged

ROUNDS = 30
SMALL, PAGES = 256, 64  # queries and keys; keys of a page
WIDTHS = (64, 128, 256, 512)

Call = Callable[[], object]


def calls(device: str, dry: bool) -> Iterator[tuple[str, Call]]:
    """Small calls by title."""
    heads, n, widths = (2, 16, (16,)) if dry else (32, SMALL, WIDTHS)
    kind = {"device": device, "dtype": torch.float16 if dry else torch.bfloat16}
    for d in widths:
        q, k, v = (torch.randn(1, heads, n, d, **kind).requires_grad_() for _ in range(3))
        out = rb.attention(q, k, v)
        dout = torch.ones_like(out)
        yield f"d {d}, n {n}", lambda q=q, k=k, v=v: rb.attention(q, k, v)
        yield (
            f"d {d}, n {n}, backward",
            lambda out=out, leaves=(q, k, v), dout=dout: torch.autograd.grad(out, leaves, dout, retain_graph=True),
        )
    batch, per_sequence, d = (2, 2, 16) if dry else (16, 16, 128)
    q = torch.randn(batch, 1, heads, d, **kind)
    keys, values = torch.randn(2, batch * per_sequence, PAGES, heads // 2, d, **kind)
    pages, lengths = torch.randperm(batch * per_sequence).view(batch, -1), torch.full((batch,), per_sequence * PAGES)
    for where, tables in (("host", pages), ("GPU", pages.to(device))):
        title = f"d {d}, decoding on pages, n_k {per_sequence * PAGES}, page table on the {where}"
        yield title, lambda tables=tables: rb.attention_paged(q, keys, values, tables, lengths)


def anew(call: Call) -> Call:
    """The call without the launches of earlier calls."""

    def forgetting() -> None:
        replay.forget()
        paged.replays.forget()
        call()

    return forgetting


def host_seconds(call: Call, wait: Call, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    wait()
    return statistics.median(times)


def seconds_in_succession(call: Call, wait: Call, rounds: int) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    wait()
    return (time.perf_counter() - start) / rounds


MEASURES = {"host": host_seconds, "in succession": seconds_in_succession}


def _interpreted() -> AbstractContextManager[None]:
    from redblue.op.pytorch.interpreted import interpreted

    return interpreted()


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--dry", action="store_true", help="without a GPU: tiny calls, interpreted")
    return parser.parse_args()


def main() -> None:
    dry = arguments().dry
    os.environ.setdefault("REDBLUE_TUNE", "0")  # the first call would time candidates
    if not dry and not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch sees: run this where there is one, or --dry to see that it works")
    wait, rounds, rows = (lambda: None) if dry else torch.cuda.synchronize, 1 if dry else ROUNDS, []
    with _interpreted() if dry else nullcontext():
        for title, call in calls("cpu" if dry else "cuda", dry):
            call()
            measured = [measure(way, wait, rounds) for way in (anew(call), call) for measure in MEASURES.values()]
            rows.append([title, *(f"{1e6 * seconds:.0f}" for seconds in measured)])
    where = "interpreted, so these times are meaningless" if dry else torch.cuda.get_device_name()
    shown = table(
        ["call"], [f"{way}\n{what}" for way in ("anew", "kept") for what in MEASURES], f"us per call: {where}"
    )
    for title, *cells in rows:
        shown.add_row(title, *cells)
    console().print(shown)


if __name__ == "__main__":
    main()
