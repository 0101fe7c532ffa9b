"""The Mask class: the public face of masks.

A mask holds a rule, which has no sizes. `Mask.on(n_q, n_k)` applies the rule to these sizes and returns `Pairs`, the
interface of schedules; `masks/lowered.py` computes the form that kernels take. Bands (full, causal, sliding window) and
block layouts have closed forms. All other rules, and every composition, become patterns (`masks/patterns/`), which are
evaluated tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import whole_number
from redblue.masks import evaluation
from redblue.masks.block_mask import read
from redblue.masks.numbers import Numbers, numbers, pair
from redblue.masks.patterns.pairs import Pairs
from redblue.masks.rules import algebra, arrays, block_patterns, packed, periodic, tokens
from redblue.masks.rules.bands import Window
from redblue.masks.rules.dense import resized
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule
from redblue.masks.rules.stack import Stack, planes


@dataclass(frozen=True)
class Mask:
    """The (query, key) pairs that attend; True means *attend*.

    Make masks with the constructors below, and combine them with & (and), | (or) and ~ (not). A constructor raises
    RedblueError, which names the argument, for invalid values. A use of the mask with an n_q or n_k that it does not
    fit raises RedblueError, too.

    rule: the kind of mask and its parameters.
    group: consecutive rows that belong to one query. Grouped-query attention stacks the heads of a group in this way.
    """

    rule: Rule
    group: int = 1

    @classmethod
    def full(cls) -> Mask:
        """Every query attends every key."""
        return cls(Window())

    @classmethod
    def causal(cls, align: str = "top-left") -> Mask:
        """Query i attends keys 0..i, as with PyTorch's is_causal.

        align: as in `sliding_window`; "bottom-right" is for decoding with keys of earlier tokens.
        """
        return cls(Window(right=0, align=align))

    @classmethod
    def sliding_window(cls, left: int | None, right: int | None = 0, align: str = "top-left") -> Mask:
        """Query i attends keys i-left..i+right. A side of None has no limit.

        align: the corner through which the diagonal runs if n_q != n_k. "top-left": query 0 has position 0 among the
        keys; "bottom-right": the last query has the position of the last key.
        """
        return cls(Window(left, right, align))

    @classmethod
    def blocks(cls, layout: Any, block: int | Sequence[int]) -> Mask:
        """Query i attends key j where layout[i // bq, j // bk] is True: block-sparse attention.

        layout: boolean array (ceil(n_q / bq), ceil(n_k / bk)), copied. block: (bq, bk), the edges of a block in queries
        and keys, or one number for both; the last block of an axis may be shorter.

        Proposition 4 of Dao et al. (NeurIPS 2022, arXiv 2205.14135) is about such masks: if a share s of the blocks is
        nonzero, FlashAttention-1 that skips the zero blocks moves Theta(n d + s n^2 d^2 / M) words. Every schedule here
        except `standard` skips the keys that no query of a tile attends, whatever the edges of tiles and blocks.
        """
        return cls(Blocks.of(layout, block))

    @classmethod
    def prefix(cls, length: int) -> Mask:
        """Every query attends keys 0..length-1. Prefix language models use `Mask.prefix(length) | Mask.causal()`."""
        return cls(tokens.Prefix(whole_number("length", length, 0)))

    @classmethod
    def key_lengths(cls, lengths: Any) -> Mask:
        """Padding: in batch entry b, every query attends keys 0..lengths[b]-1. lengths: (batch,) whole numbers."""
        prefixes = [tokens.Prefix(int(n)) for n in numbers("lengths", lengths).array]
        if not prefixes:
            raise RedblueError("lengths must have at least one entry, for a batch of one; got none")
        return cls(Stack.of(prefixes, (len(prefixes), 1)))

    @classmethod
    def documents(cls, lengths: Any, key_lengths: Any = None, within: Mask | None = None) -> Mask:
        """Packed sequences: consecutive documents, each of which attends itself.

        lengths: number of queries of each document; 0 is allowed. key_lengths: number of keys of each document;
        `lengths` if left out. n_q and n_k are the sums of the lengths.
        within: a window that applies inside each document, aligned at its first query and key, or, with
        align="bottom-right", at its last query and key.
        """
        if within is not None and not isinstance(within, Mask):
            raise RedblueError(f"within must be a window, such as Mask.causal(), got {within!r}")
        return cls(packed.documents(lengths, key_lengths, None if within is None else within.rule))

    @classmethod
    def dilated(cls, window: int, step: int) -> Mask:
        """Query i attends keys i + t * step for t = -window..window (Longformer).

        `Mask.dilated(window, step) & Mask.causal()` leaves out the keys after the query.
        """
        return cls(periodic.DilatedWindow(whole_number("window", window, 0), whole_number("step", step, 1)))

    @classmethod
    def strided(cls, stride: int) -> Mask:
        """Query i attends keys i-stride..i and, before them, every stride-th key, counted back from i.

        This is the strided pattern of Child et al. (arXiv 1904.10509) with the pairs of both its heads.
        """
        return cls(periodic.Strided(whole_number("stride", stride, 1)))

    @classmethod
    def global_tokens(cls, indices: Any) -> Mask:
        """The tokens at `indices` attend every key, and every query attends them (Longformer, BigBird)."""
        return cls(tokens.GlobalTokens(Numbers(np.unique(numbers("indices", indices).array))))

    @classmethod
    def butterfly(cls, block: int | Sequence[int]) -> Mask:
        """Block i of queries attends blocks i and i XOR 2^t of keys, for every t.

        This is the fixed pattern of block-sparse FlashAttention (arXiv 2205.14135), the flat block butterfly of Dao et
        al. (arXiv 2112.00029). block: (bq, bk), or one number for both.
        """
        return cls(block_patterns.Butterfly(pair("block", block)))

    @classmethod
    def bigbird(
        cls, block: int | Sequence[int] = 64, window: int = 3, first: int = 2, random: int = 3, seed: int = 0
    ) -> Mask:
        """The BigBird pattern of Zaheer et al. (arXiv 2007.14062), in blocks as in the authors' implementation.

        window: number of blocks around the diagonal, odd. first: number of blocks at the start that attend all blocks
        and that all blocks attend. random: number of further blocks that each row of blocks attends, drawn from all
        blocks. seed: the seed of the draw.
        """
        window = whole_number("window", window, 1)
        if window % 2 == 0:
            raise RedblueError(f"window must be an odd number of blocks, to extend equally to both sides; got {window}")
        sizes = whole_number("first", first, 0), whole_number("random", random, 0), whole_number("seed", seed, 0)
        return cls(block_patterns.BigBird(pair("block", block), window, *sizes))

    @classmethod
    def n_of_m(cls, n: int, m: int) -> Mask:
        """Query i attends keys j where (i + j) mod m < n: n of every m consecutive keys."""
        m = whole_number("m", m, 1)
        return cls(periodic.NOfM(whole_number("n", n, 1, m), m))

    @classmethod
    def random_blocks(cls, density: float, seed: int = 0, block: int | Sequence[int] = 64) -> Mask:
        """Each block of queries and keys attends with probability `density`.

        block: (bq, bk), or one number for both. The same seed and sizes give the same blocks.
        """
        if isinstance(density, bool) or not isinstance(density, (int, float, np.number)) or not 0 <= density <= 1:
            raise RedblueError(f"density must be a number from 0 to 1, got {density!r}")
        return cls(block_patterns.RandomBlocks(float(density), whole_number("seed", seed, 0), pair("block", block)))

    @classmethod
    def from_csr(cls, indptr: Any, indices: Any, n_k: int) -> Mask:
        """Query i attends the keys indices[indptr[i]:indptr[i+1]], which ascend. There are len(indptr) - 1 queries."""
        return cls(arrays.Csr.of(indptr, indices, n_k))

    @classmethod
    def from_coo(cls, rows: Any, cols: Any, shape: Sequence[int]) -> Mask:
        """Query rows[i] attends key cols[i]. The pairs may come in any order, each once. shape: (n_q, n_k)."""
        return cls(arrays.from_coo(rows, cols, shape))

    @classmethod
    def from_dense(cls, array: Any) -> Mask:
        """Query i attends key j where array[..., i, j] is True, as in PyTorch's attn_mask.

        array: boolean (..., n_q, n_k). Leading axes are batch entries and heads. Axes of length 1 broadcast. An array
        of one axis, (n_k,), is for every query.
        """
        return cls(arrays.from_dense(array))

    @classmethod
    def from_block_mask(cls, block_mask: Any) -> Mask:
        """Convert the BlockMask of PyTorch's FlexAttention: its full blocks, and its `mask_mod` in the partial blocks.

        `mask_mod` is mapped over the pairs of partial blocks; the mask keeps the result. Batch entries and heads of
        size 1 broadcast.
        """
        return cls(read(block_mask))

    @classmethod
    def stack(cls, masks: Sequence[Mask], shape: Sequence[int] | None = None) -> Mask:
        """Stack one mask for each batch entry and head, in row-major order of `shape`.

        shape: broadcasts to (..., heads), such as (heads,), (batch, 1) or (batch, heads); (len(masks),) if left out.
        """
        if not isinstance(masks, Sequence):
            raise RedblueError(f"masks must be a list of masks, such as [Mask.causal()]; got {masks!r}")
        if shape is not None and not isinstance(shape, (Sequence, np.ndarray)):
            raise RedblueError(f"shape must be a tuple of whole numbers, such as (heads,); got {shape!r}")
        axes = (len(masks),) if shape is None else tuple(whole_number(f"shape[{i}]", n) for i, n in enumerate(shape))
        if not masks or len(masks) != math.prod(axes):
            raise RedblueError(f"shape {axes} needs {math.prod(axes)} masks, at least one; got {len(masks)}")
        for i, mask in enumerate(masks):
            if not isinstance(mask, Mask) or mask.lead or mask.group != 1:
                raise RedblueError(f"masks[{i}] must be a mask of one plane, such as Mask.causal(); got {mask!r}")
        return cls(Stack.of([mask.rule for mask in masks], axes))

    @classmethod
    def per_head(cls, masks: Sequence[Mask]) -> Mask:
        """Head h has masks[h]."""
        return cls.stack(masks)

    @classmethod
    def per_batch(cls, masks: Sequence[Mask]) -> Mask:
        """Every head of batch entry b has masks[b]."""
        return cls.stack(masks, (len(masks), 1) if isinstance(masks, Sequence) else None)

    def __and__(self, other: Mask) -> Mask:
        """The pairs that both masks have."""
        return self._combined(other, algebra.both)

    def __or__(self, other: Mask) -> Mask:
        """The pairs that at least one of the masks has."""
        return self._combined(other, algebra.either)

    def __invert__(self) -> Mask:
        """The pairs that do not attend."""
        return replace(self, rule=algebra.negated(self.rule))

    def __bool__(self) -> bool:
        """Raise RedblueError: `and`, `or` and `not` would silently take or drop a whole mask."""
        raise RedblueError(
            "a mask is neither true nor false: combine masks with & (and), | (or) and ~ (not), and test with "
            "`mask is None` whether a mask is missing"
        )

    def _combined(self, other: Mask, op: Callable[[Rule, Rule], Rule]) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        if self.group != other.group:
            raise RedblueError(f"masks of {self.group} and of {other.group} rows per query cannot be combined")
        return replace(self, rule=op(self.rule, other.rule))

    def __repr__(self) -> str:
        return repr(self.rule)

    @property
    def is_full(self) -> bool:
        """Whether every query attends every key, whatever the sizes."""
        return self.rule.is_full

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of the batch entries and heads that have masks of their own; () for one mask for all."""
        return planes(self.rule)[1].shape

    def plane(self, i: int) -> Mask:
        """Return the mask of the i-th batch entry and head, in row-major order of `lead`.

        Raises RedblueError unless 0 <= i < the number of batch entries and heads in `lead`.
        """
        rules, index = planes(self.rule)
        if not 0 <= i < index.size:
            raise RedblueError(f"the mask has planes 0 to {index.size - 1}, of shape {index.shape}; got {i}")
        return replace(self, rule=rules[index.flat[i]])

    def for_group(self, group: int) -> Mask:
        """Return the mask on rows, if each query fills `group` consecutive rows."""
        return replace(self, group=self.group * whole_number("group", group, 1))

    def on(self, n_q: int, n_k: int) -> Pairs:
        """Return the attending pairs of n_q rows and n_k keys. Raises RedblueError if the mask does not fit them."""
        return self.rule.on(n_q, n_k, self.group)

    def resized(self, old: tuple[int, int], new: tuple[int, int]) -> Mask:
        """Return the same kind of mask for other (n_q, n_k), for example to test a large problem at a small size.

        Windows and blocks are scaled, other masks sampled.
        """
        return self if old == new else replace(self, rule=resized(self.rule, old, new))

    def sizes(self, n_q: int | None = None, n_k: int | None = None) -> tuple[int, int]:
        """Return n_q and n_k. A size that is left out is taken from the mask.

        Raises RedblueError if the mask does not fix that size, or if n_q is no multiple of `group`.
        """
        return evaluation.complete_sizes(self.rule, self.group, n_q, n_k)

    def nnz(self, n_q: int | None = None, n_k: int | None = None) -> int:
        """Count the attending pairs, over all planes. Sizes may be left out if the mask fixes them."""
        return evaluation.pair_count(self.rule, self.group, *self.sizes(n_q, n_k))

    def density(self, n_q: int | None = None, n_k: int | None = None) -> float:
        """Return the share of all pairs that attend; 0 if there are no pairs."""
        n_q, n_k = self.sizes(n_q, n_k)
        return self.nnz(n_q, n_k) / max(1, math.prod(self.lead) * n_q * n_k)

    def to_dense(self, n_q: int | None = None, n_k: int | None = None) -> np.ndarray:
        """Return a boolean (*lead, n_q, n_k) array, True where the query attends the key."""
        return evaluation.dense_array(self.rule, self.group, *self.sizes(n_q, n_k))

    def to_csr(self, n_q: int | None = None, n_k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (indptr, indices), int64: query i attends the keys indices[indptr[i]:indptr[i+1]], which ascend.

        Memory is proportional to the attending pairs. Raises RedblueError for a mask of several planes.
        """
        return evaluation.csr_arrays(self.rule, self.group, *self.sizes(n_q, n_k))

    def plot(self, n_q: int | None = None, n_k: int | None = None, tile: int | tuple[int, int] | None = None) -> Any:
        """Return an Altair chart of the mask's tiles: full tiles, and partial tiles, paler with fewer attending pairs.

        tile: the edges of a tile in queries and keys, or one number for both. If left out, tiles are squares, at most
        64 along an axis; for small n, a tile is a single pair. Notebooks show the chart; `.save("mask.svg")` writes it.
        Raises RedblueError for more tiles or planes than can be drawn.
        """
        from redblue.masks.picture import plot  # deferred, because it loads Altair

        return plot(self, *self.sizes(n_q, n_k), tile)
