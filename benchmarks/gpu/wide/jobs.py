"""Jobs: which kernel or call to time, with which tiles and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from redblue.kernels.gpu.planning.by_tma import GRADIENTS, GRADIENTS_EARLY, SUMS, Choice, Tile

# SMALL is no multiple of a tile, but a multiple of 16, for which Triton specializes.
N, HEADS, SMALL, DTYPE = 8192, 32, 784, "bfloat16"


class Job(NamedTuple):
    """what: a single kernel ("p", "ds", "both", "row", "key"), "forward", "backward", or a peer's name."""

    what: str
    choice: Choice | None = None
    d: int = 512
    causal: bool = False
    n: int = N
    heads: int = HEADS
    d_v: int = 0
    direction: str = "forward"
    title: str = ""

    @property
    def tile(self) -> Tile | None:
        choice, name = self.choice, {"both": "p"}.get(self.what, self.what)
        return getattr(choice, name, None) if choice else None

    @property
    def row(self) -> dict[str, Any]:
        shown = {name: x for name, x in self._asdict().items() if name != "choice" and x != ""}
        if self.choice:
            tile = self.tile
            shown["choice"] = tile._asdict() if tile else _shown(self.choice)
        return shown


def _shown(choice: Choice) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, tuple) else x for name, x in choice._asdict().items()}


BEST = Choice()
P_TILES = [
    Tile(),
    BEST.p,
    BEST.p._replace(stages=2, parts=1),
    BEST.p._replace(depth=32, stages=6),
    BEST.p._replace(parts=4),
    Tile(parts=2, stages=4),
    BEST.p._replace(resident=0),
]
SUM_TILES = [Tile(stages=4), Tile(cols=128, warps=4, stages=3), Tile(rows=64, cols=256, warps=4, stages=2)]
DS_TILES = [
    GRADIENTS_EARLY,
    GRADIENTS_EARLY._replace(parts=4),
    Tile(resident=0, early=True),
    BEST.p._replace(stages=2),
    Tile(resident=0, stages=3, parts=4, early=True),
    GRADIENTS,
    Tile(),
]
BOTH_TILES = [Tile(cols=128, warps=4)]
STREAMS = (1, 8)
LENGTHS = (512, 1024, 2048, 4096, 16384)


def kernel_jobs() -> Iterator[Job]:
    """Jobs for every single kernel with every tile, the most informative first."""
    for tile in DS_TILES:
        yield Job("ds", BEST._replace(ds=tile), direction="backward")
    for tile in P_TILES:
        yield Job("p", BEST._replace(p=tile))
    for tile in SUM_TILES:
        yield Job("row", BEST._replace(row=tile))
        yield Job("key", BEST._replace(key=tile), direction="backward")
    for tile in BOTH_TILES:
        yield Job("both", BEST._replace(p=tile, ds=None), direction="backward")
    yield Job("bmm")


def call_jobs(best: Choice, both: Tile | None) -> Iterator[Job]:
    """Whole calls with the best tiles of each kernel. both: the best tile of the kernel that computes P and dS."""
    narrow = best._replace(row=SUMS, key=SUMS)
    for causal in (False, True):
        yield Job("forward", best, causal=causal)
        yield Job("backward", best, causal=causal, direction="backward")
    for d, d_v, choice in (
        (320, 320, narrow),
        (576, 512, narrow),
        (1024, 1024, best),
        (256, 256, best),
        (192, 192, best),
    ):
        yield Job("forward", choice, d=d, d_v=d_v)
        yield Job("backward", choice, d=d, d_v=d_v, direction="backward")
    for n in LENGTHS:
        heads = HEADS * N // n
        for direction in ("forward", "backward"):
            yield Job(direction, best._replace(streams=min(heads, max(4, 16384 // n))), n=n, direction=direction)
            if n < N:
                yield Job("planned", n=n, direction=direction)
    for d in (192, 256):
        for direction in ("forward", "backward"):
            yield Job("planned", d=d, direction=direction)
    for n in (512, 2048):
        for direction in ("forward", "backward"):
            yield Job(direction, best, n=n, heads=8, direction=direction)
            yield Job("planned", n=n, heads=8, direction=direction)
    for direction in ("forward", "backward"):
        yield Job("planned", direction=direction)
        yield Job("unfused", direction=direction)
        yield Job("efficient", direction=direction)
        yield Job("unfused", d=1024, direction=direction)
    yield Job("efficient", causal=True)
    yield Job("efficient", causal=True, direction="backward")
    yield Job("math")
    yield Job("math", direction="backward")
    for streams in STREAMS:
        yield Job("forward", best._replace(streams=streams))
        yield Job("backward", best._replace(streams=streams), direction="backward")
    if both:
        fused = best._replace(p=both, ds=None)
        yield Job("backward", fused, direction="backward", title="P and dS in one kernel")


def best_of(rows: list[tuple[Job, dict[str, Any]]]) -> tuple[Choice, Tile | None]:
    """The fastest tiles of each kernel; and the tile of the kernel for both P and dS, if that kernel is faster."""
    best = {}
    for job, row in rows:
        if job.tile and "tflops" in row and row["tflops"] > best.get(job.what, (0.0, None))[0]:
            best[job.what] = row["tflops"], job.tile
    chosen = {name: tile for name, (_, tile) in best.items() if name != "both"}
    return BEST._replace(**chosen), best.get("both", (0, None))[1]
