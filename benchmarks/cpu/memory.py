"""Measure the peak memory of attention, forward and backward, at a length whose scores would take 16 GiB.

Usage: python benchmarks/cpu/memory.py [--n 65536] [--d 64] [--window KEYS] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path

import torch

import redblue as rb

MIB = 2**20


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=65_536)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--window", type=int, help="causal window: how many keys before its own a query attends")
    parser.add_argument("--most", type=int, help="fail if the forward pass adds more than this many MB (10^6 bytes)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    q, k, v = (torch.randn(1, 1, options.n, options.d, requires_grad=True) for _ in range(3))
    dout = torch.randn(1, 1, options.n, options.d)
    small = torch.randn(1, 1, 256, options.d, requires_grad=True)
    rb.attention(small, small, small).sum().backward()  # so that one-time allocations are not counted
    before = peak_bytes()
    mask = None if options.window is None else rb.Mask.sliding_window(options.window, 0)
    out = rb.attention(q, k, v, mask=mask)
    forward = peak_bytes() - before
    out.backward(dout)
    both = peak_bytes() - before
    array = 4 * options.n * options.d
    results = {
        "n": options.n,
        "d": options.d,
        "window": options.window,
        "array_bytes": array,
        "scores_bytes": 4 * options.n**2,
        "forward_bytes": forward,
        "forward_and_backward_bytes": both,
    }
    print(
        f"n = {options.n:,}, d = {options.d}, float32, one head: one array takes {array / MIB:.0f} MiB, the scores "
        f"would take {4 * options.n**2 / MIB:,.0f}\nforward adds {forward / MIB:.0f} MiB to the peak (one array: out), "
        f"forward and backward {both / MIB:.0f} (five: out, dq, dk, dv, and dQ's sums)"
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if options.most is not None and forward > options.most * 10**6:
        raise SystemExit(f"the forward pass added {forward / 1e6:.0f} MB, more than {options.most}")
    # The limit leaves space for allocators and is far below n^2.
    if both > 10 * array + 64 * MIB:
        raise SystemExit("the peak grew by more than ten arrays: is there an array of size n^2?")


if __name__ == "__main__":
    main()
