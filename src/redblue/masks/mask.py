"""Which (query, key) pairs attend: masks, as users make and hold them.

A mask is a rule without sizes. `on(n_q, n_k)` lays it on queries and keys, which gives what schedules ask (`Pairs`);
`redblue.masks.lowered` what kernels take. Bands (full, causal, sliding window) and layouts of blocks have closed forms;
all other rules, and every composition, are laid as patterns (`masks/patterns/`), which are answered tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.masks.block_mask import read
from redblue.masks.numbers import Numbers, numbers, pair
from redblue.masks.patterns import spans
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.rules import algebra, arrays, blocks
from redblue.masks.rules.bands import Window
from redblue.masks.rules.dense import resized
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.packed import WindowedDocuments
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.tiled import csr


@dataclass(frozen=True)
class Mask:
    """Which keys each query attends; True means *attend*. Use the constructors.

    rule: the kind of mask and its figures.
    group: consecutive rows that belong to one query (grouped-query attention stacks its heads so).
    """

    rule: Rule
    group: int = 1

    @classmethod
    def full(cls) -> Mask:
        """Every query attends every key."""
        return cls(Window())

    @classmethod
    def causal(cls, align: str = "top-left") -> Mask:
        """Query i attends keys 0..i (PyTorch's is_causal); "bottom-right" for decoding with a longer key cache."""
        return cls(Window(right=0, align=align))

    @classmethod
    def sliding_window(cls, left: int | None, right: int | None = 0, align: str = "top-left") -> Mask:
        """Query i attends keys i-left..i+right."""
        return cls(Window(left, right, align))

    @classmethod
    def blocks(cls, layout: Any, block: int | Sequence[int]) -> Mask:
        """Query i attends key j where layout[i // bq, j // bk] is True: block-sparse attention.

        layout: boolean array (ceil(n_q / bq), ceil(n_k / bk)), copied. block: (bq, bk), the blocks' edges in queries
        and keys, or one number for both; the last block of an axis may be shorter.
        Raises RedblueError for other layouts and blocks and, once laid on n_q and n_k, for a shape that does not fit.

        Proposition 4 of Dao et al. (NeurIPS 2022, arXiv 2205.14135) is about such masks: with a share s of nonzero
        blocks, FlashAttention-1 that skips the zero ones moves Theta(n d + s n^2 d^2 / M) words. Here every schedule
        but `standard` skips what no query of a tile attends, whatever its tiles and the blocks.
        """
        return cls(Blocks.of(layout, block))

    @classmethod
    def prefix(cls, length: int) -> Mask:
        """Every query attends keys 0..length-1. `Mask.prefix(length) | Mask.causal()` is a prefix language model's."""
        return cls(blocks.Prefix(whole_number("length", length, 0)))

    @classmethod
    def key_lengths(cls, lengths: Any) -> Mask:
        """Padding: in batch entry b, every query attends keys 0..lengths[b]-1. lengths: (batch,) whole numbers."""
        each = [blocks.Prefix(int(n)) for n in numbers("lengths", lengths).array]
        if not each:
            raise RedblueError("lengths must have at least one entry, for a batch of one; got none")
        return cls(algebra.Stack.of(each, (len(each), 1)))

    @classmethod
    def documents(cls, lengths: Any, key_lengths: Any = None, within: Mask | None = None) -> Mask:
        """Documents packed one behind the other, of which each attends itself; n_q and n_k are the sums of the lengths.

        lengths: queries of each, some perhaps 0. key_lengths: keys of each, as many as queries if left out.
        within: a window that masks each, counted from its own first query and key, or last (align="bottom-right").
        """
        queries = numbers("lengths", lengths)
        keys = queries if key_lengths is None else numbers("key_lengths", key_lengths)
        if len(keys) != len(queries):
            raise RedblueError(f"key_lengths must be as many as lengths ({len(queries)}), got {len(keys)}")
        for name, each in (("lengths", queries), ("key_lengths", keys)):
            total = each.array.sum(dtype=np.float64)
            if total > blocks.MOST_TOKENS:
                raise RedblueError(f"{name} must add up to at most {blocks.MOST_TOKENS:,}, got about {total:.3g}")
        if within is not None and not isinstance(within, Mask):
            raise RedblueError(f"within must be a window, such as Mask.causal(), got {within!r}")
        if within is None or within.is_full:
            return cls(blocks.Documents(queries, keys))
        if not isinstance(within.rule, Window):
            raise RedblueError(f"within must be a window, such as Mask.causal(), got {within!r}: use & for others")
        return cls(WindowedDocuments(queries, keys, within.rule))

    @classmethod
    def dilated(cls, window: int, step: int) -> Mask:
        """Query i attends keys i + t * step for t = -window..window (Longformer); & Mask.causal() for those before."""
        return cls(blocks.DilatedWindow(whole_number("window", window, 0), whole_number("step", step, 1)))

    @classmethod
    def strided(cls, stride: int) -> Mask:
        """Query i attends keys i-stride..i, and of those before every stride-th, counted back from i.

        The strided pattern of Child et al. (arXiv 1904.10509), its two heads as one.
        """
        return cls(blocks.Strided(whole_number("stride", stride, 1)))

    @classmethod
    def global_tokens(cls, indices: Any) -> Mask:
        """The tokens at `indices` attend every key, and every query attends them (Longformer, BigBird)."""
        return cls(blocks.GlobalTokens(Numbers(np.unique(numbers("indices", indices).array))))

    @classmethod
    def butterfly(cls, block: int | Sequence[int]) -> Mask:
        """Block i of queries attends blocks i and i XOR 2^t of keys, for every t.

        The fixed pattern of block-sparse FlashAttention (arXiv 2205.14135): the flat block butterfly of Dao et al.
        (arXiv 2112.00029). block: (bq, bk), or one number for both.
        """
        return cls(blocks.Butterfly(pair("block", block)))

    @classmethod
    def bigbird(
        cls, block: int | Sequence[int] = 64, window: int = 3, first: int = 2, random: int = 3, seed: int = 0
    ) -> Mask:
        """Zaheer et al. (arXiv 2007.14062), by blocks, as its authors compute it.

        window: blocks around the diagonal, an odd number. first: blocks at the start that attend all and that all
        attend. random: blocks that each row of blocks attends besides, drawn from all with `seed`.
        """
        window = whole_number("window", window, 1)
        if window % 2 == 0:
            raise RedblueError(f"window must be an odd number of blocks, as many on both sides; got {window}")
        sizes = whole_number("first", first, 0), whole_number("random", random, 0), whole_number("seed", seed, 0)
        return cls(blocks.BigBird(pair("block", block), window, *sizes))

    @classmethod
    def n_of_m(cls, n: int, m: int) -> Mask:
        """Of every m keys in a row each query attends n: query i attends keys j where (i + j) mod m < n."""
        m = whole_number("m", m, 1)
        return cls(blocks.NOfM(whole_number("n", n, 1, m), m))

    @classmethod
    def random_blocks(cls, density: float, seed: int = 0, block: int | Sequence[int] = 64) -> Mask:
        """Each block of queries and keys attends with probability `density`; the same ones for a seed and sizes."""
        if isinstance(density, bool) or not isinstance(density, (int, float, np.number)) or not 0 <= density <= 1:
            raise RedblueError(f"density must be a number from 0 to 1, got {density!r}")
        return cls(blocks.RandomBlocks(float(density), whole_number("seed", seed, 0), pair("block", block)))

    @classmethod
    def from_csr(cls, indptr: Any, indices: Any, n_k: int) -> Mask:
        """Query i attends the keys indices[indptr[i]:indptr[i+1]], which ascend: a graph of len(indptr) - 1 queries."""
        return cls(arrays.Csr.of(indptr, indices, n_k))

    @classmethod
    def from_coo(cls, rows: Any, cols: Any, shape: Sequence[int]) -> Mask:
        """Query rows[i] attends key cols[i], for every i, in any order. shape: (n_q, n_k)."""
        return cls(arrays.from_coo(rows, cols, shape))

    @classmethod
    def from_dense(cls, array: Any) -> Mask:
        """Where the boolean array is True; shape (..., n_q, n_k), as PyTorch's attn_mask.

        Leading axes are batch entries and heads, and broadcast; so do n_q and n_k where they are 1 or left out.
        """
        return cls(arrays.from_dense(array))

    @classmethod
    def from_block_mask(cls, block_mask: Any) -> Mask:
        """What PyTorch's FlexAttention takes: its full blocks, and its `mask_mod` on the partial ones.

        The pairs of partial blocks are asked once and kept; batch entries and heads of size 1 broadcast.
        """
        return cls(read(block_mask))

    @classmethod
    def stack(cls, masks: Sequence[Mask], shape: Sequence[int] | None = None) -> Mask:
        """A mask for each batch entry and head, in row-major order of `shape`; one axis (heads) if left out.

        The shape broadcasts to (..., heads): (heads,), (batch, 1) or (batch, heads).
        """
        if not isinstance(masks, Sequence):
            raise RedblueError(f"masks must be a list of masks, such as [Mask.causal()]; got {masks!r}")
        if shape is not None and not isinstance(shape, (Sequence, np.ndarray)):
            raise RedblueError(f"shape must be a tuple of whole numbers, such as (heads,); got {shape!r}")
        wanted = (
            (len(masks),) if shape is None else tuple(whole_number(f"shape[{i}]", n, 1) for i, n in enumerate(shape))
        )
        if not masks or len(masks) != math.prod(wanted):
            raise RedblueError(f"shape {wanted} needs {math.prod(wanted)} masks, at least one; got {len(masks)}")
        for i, mask in enumerate(masks):
            if not isinstance(mask, Mask) or mask.lead or mask.group != 1:
                raise RedblueError(f"masks[{i}] must be a mask of one plane, such as Mask.causal(); got {mask!r}")
        return cls(algebra.Stack.of([mask.rule for mask in masks], wanted))

    @classmethod
    def per_head(cls, masks: Sequence[Mask]) -> Mask:
        """masks[h] for head h."""
        return cls.stack(masks)

    @classmethod
    def per_batch(cls, masks: Sequence[Mask]) -> Mask:
        """masks[b] for batch entry b, whatever the head."""
        return cls.stack(masks, (len(masks), 1) if isinstance(masks, Sequence) else None)

    def __and__(self, other: Mask) -> Mask:
        """Pairs that both attend."""
        return self._with(other, algebra.both)

    def __or__(self, other: Mask) -> Mask:
        """Pairs that either attends."""
        return self._with(other, algebra.either)

    def __invert__(self) -> Mask:
        """Pairs that do not attend."""
        return replace(self, rule=algebra.negated(self.rule))

    def _with(self, other: Mask, op: Callable[[Rule, Rule], Rule]) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        if self.group != other.group:
            raise RedblueError(f"masks of {self.group} and of {other.group} rows per query cannot be combined")
        return replace(self, rule=op(self.rule, other.rule))

    def __repr__(self) -> str:
        return repr(self.rule)

    @property
    def is_full(self) -> bool:
        """Whether every query attends every key, however many there are."""
        return self.rule.is_full

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of its planes, for batch entries and heads: () for one mask for all."""
        return algebra.planes(self.rule)[1].shape

    def plane(self, i: int) -> Mask:
        """The mask of the i-th batch entry and head, in row-major order of `lead`."""
        parts, each = algebra.planes(self.rule)
        if not 0 <= i < each.size:
            raise RedblueError(f"the mask has planes 0 to {each.size - 1}, of shape {each.shape}; got {i}")
        return replace(self, rule=parts[each.flat[i]])

    def for_group(self, group: int) -> Mask:
        """The same mask when each query fills `group` consecutive rows."""
        return replace(self, group=self.group * whole_number("group", group, 1))

    def on(self, n_q: int, n_k: int) -> Pairs:
        """The mask laid on n_q rows and n_k keys. Raises RedblueError where it does not fit."""
        return self.rule.on(n_q, n_k, self.group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Mask:
        """The same kind of mask for other numbers of queries and keys: windows scaled, layouts thinned out."""
        return self if old == new else replace(self, rule=resized(self.rule, old, new))

    def sizes(self, n_q: int | None = None, n_k: int | None = None) -> tuple[int, int]:
        """n_q and n_k, those that are left out from what the mask knows. Raises RedblueError if it knows none."""
        queries, keys = self.rule.sizes
        known = None if queries is None else queries * self.group, keys
        found = [own if given is None else given for own, given in zip(known, (n_q, n_k), strict=True)]
        missing = [name for name, n in zip(("n_q", "n_k"), found, strict=True) if n is None]
        if missing:
            raise RedblueError(f"{self!r} is for any sizes: give {' and '.join(missing)}")
        n_q, n_k = (whole_number(name, n, 0) for name, n in zip(("n_q", "n_k"), found, strict=True))
        if n_q % self.group:
            raise RedblueError(f"n_q must be a multiple of the mask's {self.group} rows per query, got {n_q}")
        return n_q, n_k

    def nnz(self, n_q: int | None = None, n_k: int | None = None) -> int:
        """Pairs that attend, over all planes. Sizes may be left out where the mask knows them."""
        n_q, n_k = self.sizes(n_q, n_k)
        parts, each = algebra.planes(self.rule)
        found = [rule.on(n_q, n_k, self.group).nnz for rule in parts]
        return sum(found[i] for i in each.flat)

    def density(self, n_q: int | None = None, n_k: int | None = None) -> float:
        """Share of all pairs that attend; 0 where there are none."""
        n_q, n_k = self.sizes(n_q, n_k)
        return self.nnz(n_q, n_k) / max(1, math.prod(self.lead) * n_q * n_k)

    def to_dense(self, n_q: int | None = None, n_k: int | None = None) -> np.ndarray:
        """Boolean (*lead, n_q, n_k) array, True where query attends key."""
        n_q, n_k = self.sizes(n_q, n_k)
        parts, each = algebra.planes(self.rule)
        found = [rule.on(n_q, n_k, self.group).dense(range(n_q), range(n_k)) for rule in parts]
        return np.stack(found)[each] if self.lead else found[0]

    def to_csr(self, n_q: int | None = None, n_k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, indices), int64: query i attends the keys indices[indptr[i]:indptr[i+1]], which ascend.

        Memory in proportion to the pairs that attend. Raises RedblueError for a mask of several planes.
        """
        n_q, n_k = self.sizes(n_q, n_k)
        indptr, indices = csr(self.rule.laid(n_q // self.group, n_k))
        if self.group == 1:
            return indptr, indices
        each, rows = np.diff(indptr), np.arange(n_q) // self.group
        _, entries = spans.listed(indptr[rows], each[rows])
        return np.append(0, np.cumsum(each[rows])), indices[entries]

    def plot(self, n_q: int | None = None, n_k: int | None = None, tile: int | tuple[int, int] | None = None) -> Any:
        """An Altair chart of its tiles: full, or partly attended (the paler, the less); single pairs where n is small.

        tile: their edges in queries and keys, or one number for both; at most 64 along an axis if left out.
        Notebooks show it, and `.save("mask.svg")` writes it. Raises RedblueError for more tiles or planes than can be
        drawn.
        """
        from redblue.masks.picture import plot  # deferred: it loads Altair

        return plot(self, *self.sizes(n_q, n_k), tile)
