"""Attention on a paged cache: sequences of different lengths whose keys lie in pages, some of them shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np

from redblue.base.dtypes import BYTES_PER_WORD, DEFAULT_DTYPE, check_dtype
from redblue.base.errors import RedblueError
from redblue.base.integers import clip, int64_array, whole_number
from redblue.masks import Mask
from redblue.masks.numbers import numbers
from redblue.masks.patterns.band import Band
from redblue.masks.rules.bands import Window
from redblue.problem import Problem

MAX_ROWS = 2**24  # rows of one stream: closed forms sum over its blocks of rows, one by one
MAX_PAGES = 2**20  # entries of all tables
MAX_PRODUCTS = 2**58  # rows x longest keys x d: counts fit 64-bit integers


@dataclass(frozen=True)
class PagedProblem:
    """Attention of each sequence's queries on its keys and values, which lie in pages; forward only.

    Sequence b has queries[b] queries and keys[b] keys. Its key j lies in page table[b][j // page], row j % page. Each
    page holds `page` keys and values of `kv_heads` heads. Sequences share a page if their tables name the same one.

    d: features of a query and of a key. d_v: features of a value and of an output; `d` by default.
    heads, kv_heads: query heads, and key/value heads, which are `heads` by default.
    table: the page numbers of each sequence, whole numbers of at least 0. Entries that keys[b] does not need are
        dropped. None: every sequence has pages of its own.
    v_in_k: V is the first d_v features of K, as in multi-head latent attention, so a row of a page has d words instead
        of d + d_v.
    dtype: the number type, one of the names in BYTES_PER_WORD. An entry of the table counts as one word, too.
    mask: full, or a causal mask or window with align="bottom-right"; causal by default. It applies in each sequence.

    Raises RedblueError, which names the argument, for values that do not fit each other and for sizes too large to
    count: more than 2^20 entries in all tables, more than 2^24 rows per key/value head, or a product of these rows, the
    longest keys and d (or d_v, if larger) above 2^58.
    """

    queries: Sequence[int]
    keys: Sequence[int]
    page: int
    d: int
    d_v: int = cast(int, None)  # None becomes d
    heads: int = 1
    kv_heads: int = cast(int, None)  # None becomes heads
    table: Sequence[Sequence[int]] = cast(Sequence[Sequence[int]], None)  # None becomes pages of their own
    v_in_k: bool = False
    dtype: str = DEFAULT_DTYPE
    mask: Mask = field(default_factory=lambda: Mask.causal(align="bottom-right"))

    def __post_init__(self) -> None:
        for name in ("queries", "keys"):
            object.__setattr__(self, name, tuple(numbers(name, getattr(self, name)).array.tolist()))
        if not self.keys or len(self.queries) != len(self.keys):
            raise RedblueError(
                "queries and keys must be lists of one length, with an entry for each sequence and at least one "
                f"sequence; got lengths {len(self.queries)} and {len(self.keys)}"
            )
        if self.d_v is None:
            object.__setattr__(self, "d_v", self.d)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        for name in ("page", "d", "d_v", "heads", "kv_heads"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.heads % self.kv_heads:
            raise RedblueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if not isinstance(self.v_in_k, (bool, np.bool_)):
            raise RedblueError(f"v_in_k must be True or False, got {self.v_in_k!r}")
        object.__setattr__(self, "v_in_k", bool(self.v_in_k))
        if self.v_in_k and self.d_v > self.d:
            raise RedblueError(f"v_in_k makes V a part of K, so d_v ({self.d_v}) must be at most d ({self.d})")
        check_dtype("dtype", self.dtype)
        self._check_mask()
        if self.n_q > MAX_ROWS or self.n_q * self.n_k * max(self.d, self.d_v) > MAX_PRODUCTS:
            raise RedblueError(
                f"{self.n_q:,} rows (queries times query heads per key/value head), {self.n_k:,} keys and d = "
                f"{self.d:,} are too many to count: give at most {MAX_ROWS:,} rows, and at most {MAX_PRODUCTS:,} for "
                "rows x keys x d (or d_v, if larger)"
            )
        object.__setattr__(self, "table", self._checked_table())

    def _check_mask(self) -> None:
        rule = self.mask.rule if isinstance(self.mask, Mask) else None
        if not isinstance(rule, Window) or self.mask.group != 1 or not (rule.is_full or rule.align == "bottom-right"):
            raise RedblueError(
                'mask must be Mask.full(), or Mask.causal or Mask.sliding_window with align="bottom-right", got '
                f"{self.mask!r}"
            )

    def _checked_table(self) -> tuple[tuple[int, ...], ...]:
        needed = [-(-keys // self.page) for keys in self.keys]
        if sum(needed) > MAX_PAGES:
            raise RedblueError(
                f"keys need {sum(needed):,} pages of {self.page}, and at most {MAX_PAGES:,} are counted: give larger "
                "pages or fewer keys"
            )
        if self.table is None:
            ends = np.cumsum([0, *needed]).tolist()
            return tuple(tuple(range(a, b)) for a, b in pairwise(ends))
        rows: list[Any] = list(self.table) if hasattr(self.table, "__len__") else []
        if len(rows) != len(needed):
            raise RedblueError(f"table must have a list of pages for each of {len(needed)} sequences, got {len(rows)}")
        for b, row in enumerate(rows):
            pages = int64_array(f"table[{b}]", row if hasattr(row, "__len__") else [row])[: needed[b]]
            if len(pages) < needed[b]:
                raise RedblueError(
                    f"table[{b}] must name {needed[b]} pages of {self.page} for keys[{b}] = {self.keys[b]}, got "
                    f"{len(pages)}"
                )
            rows[b] = tuple(numbers(f"table[{b}]", pages).array.tolist())
        return tuple(rows)

    @classmethod
    def of(cls, problem: Problem, page: int, prefix: int = 0, v_in_k: bool = False) -> PagedProblem:
        """Return a problem's batch as sequences whose keys lie in pages.

        page: keys per page. prefix: number of first keys that all sequences share; pages that hold only such keys are
        shared. v_in_k: as in PagedProblem.
        Raises RedblueError for another direction than forward, for more than 2^20 pages, and as PagedProblem does, for
        example for a mask that is neither full nor aligned "bottom-right".
        """
        if not isinstance(problem, Problem) or problem.direction != "forward":
            raise RedblueError(
                f'problem must be a Problem with direction="forward", the only one of paged attention; got {problem!r}'
            )
        page, prefix = whole_number("page", page), whole_number("prefix", prefix, 0, problem.n_k)
        shared, pages = prefix // page, -(-problem.n_k // page)
        if problem.batch * max(1, pages) > MAX_PAGES:
            raise RedblueError(
                f"{problem.batch:,} sequences of {problem.n_k:,} keys need {problem.batch * pages:,} pages of {page}, "
                f"and at most {MAX_PAGES:,} are counted: give larger pages or fewer keys"
            )
        own = pages - shared
        table = [(*range(shared), *range(shared + b * own, shared + (b + 1) * own)) for b in range(problem.batch)]
        p = problem
        sizes = ((p.n_q,) * p.batch, (p.n_k,) * p.batch, page, p.d, p.d_v, p.heads, p.kv_heads)
        return cls(*sizes, table, v_in_k, p.dtype, p.mask)

    # Attributes that Problem has, too ------------------------------------------------------------------
    direction = "paged"

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def streams(self) -> int:
        """Number of independent attentions: one per key/value head. Sequences are not independent: they share pages."""
        return self.kv_heads

    @property
    def bytes_per_word(self) -> int:
        """Bytes of one number."""
        return BYTES_PER_WORD[self.dtype]

    @property
    def n_q(self) -> int:
        """Rows of one stream: the queries of all sequences times the query heads per key/value head."""
        return self.group * sum(self.queries)

    @property
    def n_k(self) -> int:
        """Keys of the longest sequence."""
        return max(self.keys)

    def one_stream(self) -> PagedProblem:
        """Return the problem of one key/value head, which a schedule runs once per head.

        The stream numbers its pages from 0. It orders its sequences by their shareable pages, so that sequences with
        the same first pages are neighbours. Neither changes the words of a schedule.
        """
        return self._stream

    @cached_property
    def _stream(self) -> PagedProblem:
        order = sorted(range(len(self.keys)), key=lambda b: tuple(self.table[b][: self.shareable[b] // self.page]))
        places: dict[int, int] = {}
        table = tuple(tuple(places.setdefault(p, len(places)) for p in self.table[b]) for b in order)
        of = lambda values: tuple(values[b] for b in order)  # noqa: E731
        stream = replace(self, queries=of(self.queries), keys=of(self.keys), table=table, heads=self.group, kv_heads=1)
        stream.__dict__["_stream"] = stream
        return stream

    # Sizes that schedules and bounds use ------------------------------------------------------------
    @property
    def key_words(self) -> int:
        """Words of one key and its value."""
        return self.d if self.v_in_k else self.d + self.d_v

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.keys)

    @property
    def cells(self) -> int:
        """Rows of all pages from 0 to the largest page number in the table."""
        return self.page * (1 + max((max(row, default=-1) for row in self.table), default=-1))

    @property
    def v_cells(self) -> int:
        """Rows of the pages of V; 0 if V is a part of K."""
        return 0 if self.v_in_k else self.cells

    @property
    def most_pages(self) -> int:
        """Pages of the longest sequence."""
        return max(map(len, self.table))

    def band(self, sequence: int) -> Band:
        """Return the attended pairs of a sequence: rows (queries times query heads per key/value head) by keys."""
        rule = cast(Window, self.mask.rule)
        return rule.on(self.group * self.queries[sequence], self.keys[sequence], self.group)

    @cached_property
    def shareable(self) -> tuple[int, ...]:
        """For each sequence, the number of first keys that all of its queries attend."""
        counts = []
        for b, keys in enumerate(self.keys):
            band = self.band(b)
            last_query = self.queries[b] - 1
            counts.append(0 if last_query + band.first > 0 else int(clip(band.end, 0, keys)))
        return tuple(counts)

    @property
    def live_rows(self) -> int:
        """Rows of one stream that attend some key."""
        return sum(len(rows) for b, keys in enumerate(self.keys) for rows in self.band(b).rows_of(range(keys)))

    @cached_property
    def used_rows(self) -> dict[int, list[tuple[int, int]]]:
        """The attended rows of each page, as disjoint ranges (first, stop), for pages with at least one such row."""
        ranges: dict[int, set[tuple[int, int]]] = {}
        for b, row in enumerate(self.table):
            for keys in self.band(b).cols_of(range(self.group * self.queries[b])):
                for place in range(keys.start // self.page, -(-keys.stop // self.page)):
                    start = place * self.page
                    part = max(keys.start - start, 0), min(keys.stop - start, self.page)
                    ranges.setdefault(row[place], set()).add(part)
        return {page: _joined(parts) for page, parts in ranges.items()}


def _joined(ranges: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of ranges (first, stop) as disjoint ranges."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((first, stop))
    return joined


AnyProblem: TypeAlias = Problem | PagedProblem
