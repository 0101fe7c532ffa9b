"""Count the bytes that four kernels move at two memory boundaries, and compare them with closed forms: `.ci/gpu ncu`.

Nsight Compute counts one head of the calls that the benchmark times, with the launches of their plans. Between shared
memory and L2, the count is compared with the closed form of the schedule; between L2 and DRAM, with the lower bound for
the capacity of L2. --dry needs no GPU: it plans for an H100 and only computes the closed forms.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

import redblue as rb
from benchmarks.common.kept import now
from benchmarks.common.options import console, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.small_cache.bytes import Place, bytes_of
from benchmarks.small_cache.crossing import WORD_BYTES, Row, problem
from redblue import schedules
from redblue.base.errors import RedblueError
from redblue.base.files import replace_whole
from redblue.base.terminal import table
from redblue.kernels.gpu.planning.by_gluon import Settings
from redblue.kernels.gpu.planning.by_tma import Choice
from redblue.kernels.gpu.planning.card import Card, card_of
from redblue.kernels.gpu.planning.resources import WARPGROUP_ROWS

KEPT = RESULTS / "counters.json"
COUNTED = (("forward", 128), ("backward", 128), ("forward", 512), ("backward", 512))
PATIENCE_SECONDS = 60
ALL_KILOBYTES = 1 << 10  # more than any block has, to use all of the card's memory


@dataclass
class Counted:
    """Bytes of one call, for one head."""

    direction: str
    d: int
    schedule: str
    launch: str = ""
    closed_form_bytes: int = 0  # between shared memory and L2
    l1_l2_bytes: int | None = None
    l2_bound_bytes: int = 0  # between L2 and DRAM, for any algorithm
    l2_dram_bytes: int | None = None
    failure: str = ""
    date: str = ""


def predicted(place: Place, card: Card) -> Counted:
    """The closed forms. Raises RedblueError if no launch fits the card."""
    from benchmarks.small_cache.device import planned

    row = Row(*place)
    launch, case = planned(row, card), problem(row.direction, row.d)
    counted = Counted(row.direction, row.d, launch.kernel, repr(launch), date=now())
    counted.closed_form_bytes = schedules.get(launch.kernel).words(case, tiles_of(launch.tiles, case)) * WORD_BYTES
    counted.l2_bound_bytes = rb.lower_bound(case, words=card.l2_bytes // WORD_BYTES).words * WORD_BYTES
    return counted


def tiles_of(tiles: Any, case: rb.Problem) -> Any:
    """The tiles with the schedule's names; tiles of the kernels for Hopper GPUs have other names."""
    if isinstance(tiles, Settings):
        edges = {"rows": WARPGROUP_ROWS * tiles.consumers, "cols": tiles.cols, "span": case.n_k}
        return schedules.get("flash").make_tiles(case, edges)
    if not isinstance(tiles, Choice):
        return tiles
    p, row, key = tiles.p, tiles.row, tiles.key
    edges = {"rows": p.rows, "cols": p.cols, "depth": p.depth, "span": case.n_k}
    if case.direction == "forward":
        edges |= {"out_rows": row.rows, "out_cols": row.cols}
    else:
        edges |= {"dq_rows": row.rows, "dq_cols": row.cols, "chunk": case.n_q}
        edges |= {f"{name}_{edge}": getattr(key, edge) for name in ("dk", "dv") for edge in ("rows", "cols")}
    return schedules.get("small_cache").make_tiles(case, edges)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """A context that raises TimeoutError when the time is over."""

    def over(signum: int, frame: object) -> None:
        raise TimeoutError(f"took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write(path: Path, rows: list[Counted]) -> None:
    text = ",\n".join(json.dumps(asdict(row)) for row in rows)
    replace_whole(path, lambda draft: draft.write_text(f"[\n{text}\n]\n", encoding="utf-8"))


def show(rows: list[Counted], console: Console) -> None:
    names = ("L1/L2: counted", "closed form", "ratio", "L2/DRAM: counted", "bound")
    made = table(("bytes of one head, n 8192, bfloat16",), names)
    for row in rows:
        near, far = row.l1_l2_bytes, row.l2_dram_bytes
        made.add_row(
            f"{row.direction}, d {row.d}, {row.schedule}",
            f"{near / 1e6:,.1f} MB" if near else row.failure[:40],
            f"{row.closed_form_bytes / 1e6:,.1f} MB",
            f"{near / row.closed_form_bytes:.3f}" if near else "",
            f"{far / 1e6:,.1f} MB" if far else "",
            f"{row.l2_bound_bytes / 1e6:,.1f} MB",
        )
    console.print(made)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dry", action="store_true", help="without a GPU: only the closed forms")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds (%(default)s)")
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    options, out = parser.parse_args(), console()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch sees: run this where there is one, or --dry --json FILE to see that it works")
    end, card = time.monotonic() + options.budget, Card() if options.dry else card_of(torch.device("cuda"))
    rows: list[Counted] = []
    for direction, d in COUNTED:
        place = direction, d, ALL_KILOBYTES, "auto"
        row = Counted(direction, d, "auto", date=now())
        left = end - time.monotonic()
        try:
            row = predicted(place, card)
            if not options.dry and left > 1:
                with patience(min(PATIENCE_SECONDS, left)):
                    ((row.l1_l2_bytes, row.l2_dram_bytes),) = bytes_of([place])
        except (RedblueError, TimeoutError) as failure:
            row.failure = str(failure)
        rows.append(row)
        write(options.json, rows)
    show(rows, out)
    for row in rows:
        if row.failure:
            out.print(f"{row.direction}, d {row.d}, {row.schedule}: {row.failure}", highlight=False)
    sys.exit(any(row.failure for row in rows))


if __name__ == "__main__":
    main()
