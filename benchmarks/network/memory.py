"""Measure the peak memory of each process in attention with a window on a long sequence, as a multiple of its parts.

A process's parts are its rows of q, k, v and out. Its peak is the highest resident memory until the call returns, minus
the resident memory before the tensors are allocated.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from benchmarks.common.options import at_least, parser_of
from benchmarks.common.timing import with_seconds
from benchmarks.network import local

D = 64


def measure(n: int, window: int, schedule: str) -> dict[str, float]:
    """The bytes of this process's parts, its peak over the start, and the seconds of the call."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]

    import redblue as rb
    from redblue import distributed

    def call(n: int, window: int) -> int:
        rows = len(range(dist.get_rank(), n, dist.get_world_size()))
        q, k, v = (torch.randn(1, 1, rows, D) for _ in range(3))
        out = distributed.attention(q, k, v, mask=rb.Mask.sliding_window(window), schedule=schedule)
        return sum(x.nbytes for x in (q, k, v, out))

    call(1024, 16)  # loads libraries and opens connections
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    parts, seconds = with_seconds(lambda: call(n, window))
    return {"parts_bytes": parts, "peak_bytes": resident("VmHWM") - before, "seconds": seconds}


def resident(field: str) -> int:
    """Bytes of resident memory: VmRSS is the current value, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--n", type=at_least(1), default=1 << 20, help="tokens")
    parser.add_argument("--window", type=at_least(0), default=4096)
    parser.add_argument("--processes", type=at_least(1), default=4)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    rows_of_processes: list[dict[str, Any]] = local.run(
        measure, options.processes, options.n, options.window, options.schedule
    )
    for rank, row in enumerate(rows_of_processes):
        row["peak_over_parts"] = round(row["peak_bytes"] / row["parts_bytes"], 3)
        print(
            f"rank {rank}: parts {row['parts_bytes'] / 2**20:.0f} MiB, peak {row['peak_bytes'] / 2**20:.0f} MiB, "
            f"x {row['peak_over_parts']:.2f}, {row['seconds']:.1f} s"
        )
    if options.json:
        about = {"date": datetime.date.today().isoformat(), "n": options.n, "window": options.window, "d": D}
        options.json.write_text(json.dumps(about | {"processes": rows_of_processes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
