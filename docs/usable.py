"""How much of a cache's capacity a schedule can use: `python docs/usable.py` writes docs/usable.md in two minutes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import redblue as rb
from redblue import schedules
from redblue.machine import CacheLevel
from redblue.simulation import simulate

PAGE = Path(__file__).with_suffix(".md")
SHARES = 16  # tiles are chosen for 2/16, 3/16 ... of the capacity
LINE_WORDS = 16  # 64 bytes of float32
PITCH_WORDS = 4096  # from one row to the next where the heads of a token lie side by side: 16 KiB
LIMITS = (1.05, 1.25)

LAYOUTS = {
    "fully associative": "the same capacity and lines in one set; rows lie side by side",
    "dense": "rows lie side by side: q is n x d words without a gap",
    "power of two": f"{PITCH_WORDS} words from row to row of q, k, v and out",
    "padded": f"{PITCH_WORDS} + d words from row to row, and {LINE_WORDS} more than n in the spilled P",
    "packed": "power of two, and every tile that is loaded is copied to memory of its own first",
}


class Case(NamedTuple):
    cache: CacheLevel
    title: str
    schedule: str
    n: int
    d: int


L1 = (("flash", 256, 64), ("hybrid", 256, 128), ("small_cache", 256, 256))
L2 = (("flash", 1024, 256), ("hybrid", 1024, 512))
CASES = [
    Case(CacheLevel(title, kib * 2**10, 4 * LINE_WORDS, ways), title, *case)
    for title, kib, ways, cases in (
        ("L1d, 32 KiB, 8 ways", 32, 8, L1),
        ("L1d, 48 KiB, 12 ways", 48, 12, L1),
        ("L2, 1 MiB, 16 ways", 1024, 16, L2),
    )
    for case in cases
]


@dataclass(frozen=True)
class Point:
    share: float  # words that the schedule holds at most, of the capacity
    counted: int
    moved: int


def points(job: tuple[Case, str]) -> list[Point]:
    """The schedule in one layout, with tiles for ever larger shares of the cache."""
    case, layout = job
    problem = rb.Problem(case.n, case.n, case.d, dtype="float32")
    schedule, cache = schedules.get(case.schedule), case.cache
    words, leading = cache.capacity_bytes // problem.bytes_per_word, dict[str, int]()
    multiple = dict.fromkeys(schedule.direction(problem).edges, LINE_WORDS)
    if not schedule.spills:
        multiple["rows"] = 1  # whole rows are whole lines anyway
    if layout == "fully associative":
        cache = CacheLevel(cache.name, cache.capacity_bytes, cache.line_bytes)
    elif layout != "dense":
        pitch = PITCH_WORDS + (case.d if layout == "padded" else 0)
        leading |= dict.fromkeys(("q", "k", "v", "out"), pitch)
        if layout == "padded" and schedule.spills:
            leading["p"] = case.n + LINE_WORDS
    found = {}
    for share in range(2, SHARES + 1):
        try:
            tiles = schedule.tiles(problem, words * share // SHARES, multiple)._asdict()
        except rb.TooFewWords:
            continue
        key = tuple(tiles.values())
        if key not in found:
            run = simulate(case.schedule, problem, [cache], tiles=tiles, packed=layout == "packed", leading=leading)
            found[key] = Point(run.count.peak / words, run.count.words, run.levels[0].words)
    return list(found.values())


def usable(tried: list[Point], limit: float) -> str:
    """The largest share whose tiles move at most `limit` times what they count."""
    shares = [x.share for x in tried if x.moved <= limit * x.counted]
    return f"{max(shares):.0%}" if shares else "none"


def best(tried: list[Point]) -> str:
    """The share that moves the fewest words, and these over what is counted for tiles that fill the cache."""
    found = min(tried, key=lambda x: x.moved)
    return f"{found.share:.0%}: {found.moved / tried[-1].counted:.2f}"


def table(cells: list[list[str]]) -> str:
    head = ["cache", "schedule", "n", "d", *LAYOUTS]
    rows = [
        [case.title, f"`{case.schedule}`", str(case.n), str(case.d), *row]
        for case, row in zip(CASES, cells, strict=True)
    ]
    lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(tried: list[list[list[Point]]]) -> str:
    shares = [[" / ".join(usable(x, limit) for limit in LIMITS) for x in row] for row in tried]
    layouts = "\n".join(f"- **{name}**: {text}" for name, text in LAYOUTS.items())
    return TEXT.format(
        layouts=layouts,
        shares=table(shares),
        best=table([[best(x) for x in row] for row in tried]),
        steps=SHARES,
        line=LINE_WORDS,
        pitch=PITCH_WORDS,
    )


def main() -> None:
    jobs = [(case, layout) for case in CASES for layout in LAYOUTS]
    with ProcessPoolExecutor() as pool:
        done = list(pool.map(points, jobs))
    width = len(LAYOUTS)
    PAGE.write_text(page([done[i : i + width] for i in range(0, len(done), width)]), encoding="utf-8")
    print(f"written: {PAGE}")


TEXT = """\
# How much of a cache a schedule can use

The model's cache holds what the schedule says. A CPU's holds what was touched last, in lines, and each line in one set
only. So tiles that fill all of *M* in the model do not stay in a real cache of *M* words, and the question is for how
much of it tiles should be chosen. Simulated (`redblue.machine.Cached`), not measured; written by `docs/usable.py`.

Forward, full mask, one head, float32, lines of 64 bytes, one level of LRU that writes back; overwriting a whole line
does not read it first. Tile edges are multiples of {line} words, except the rows of `flash`. Everything is counted that
moves between the cache and the next level, dead tiles that are written back included.

{layouts}

## Usable share

The largest share of the capacity that tiles hold in the model while the cache moves at most 1.05 / 1.25 times the
words counted for these tiles. Tiles are chosen for 2/{steps}, 3/{steps} ... of the capacity; the share is what they
hold then.

{shares}

## The best choice

The share whose tiles move the fewest words, and these words over what the model counts for tiles chosen for the whole
cache: the price of a real one.

{best}

## Why

**Least recently used.** Tiles that stay must be touched again before everything else in the cache has been. From one
use to the next, a `flash` forward pass touches all that it keeps, *and* the slices of K and V that it has finished
with: LRU cannot know that they are dead. With r rows and c columns it needs

    r (d + d_v + 2) + r c + r + c (d + d_v) words (or r (2 d_v + 3), if that is more: O, and where it is stored)

where the model needs the larger of c d, c d_v and r instead of the last two terms. With whole lines and one set this
capacity moves exactly the counted words, and besides the dead tiles that LRU writes back
(`tests/test_cached_costs.py`). One line less makes LRU evict each line just before its next use: a cliff, not a slope.
That is why a full cache can cost a multiple, and a part of it nothing.
`hybrid` keeps rows of Q of which it uses one slice of features at a time, so a whole score tile, its spilled P and c
rows of K pass by in between: it needs the most slack. Its row maxima lie in columns, a line for each word.

**Sets.** Rows that lie a power of two apart fall into few sets: with {pitch} words between rows, all rows of q begin in
the same set of an L1d, and a tile of more rows than ways cannot stay. Padding each row, or copying tiles to memory of
their own, spreads them. A copy passes through the cache as well and finds its source in few sets. Rows that lie side by
side are a power of two apart too where d (for P: n) is one, as here: that is what padding mends in the last rows.
"""

if __name__ == "__main__":
    main()
