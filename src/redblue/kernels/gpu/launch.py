"""What one launch of kernels works on, and the launch itself as data, so that it can be run, compiled or counted."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.base.errors import RedblueError
from redblue.kernels.cpu.call import Sizes
from redblue.kernels.gpu.mask_lists import Lists, Plane, first_plane, lists
from redblue.kernels.gpu.planning.device import in_use
from redblue.masks import Mask

MOST_NUMBER = torch.finfo(torch.float32).max
STEEP = 1024.0  # a scale above it makes scores of which float32 keeps no whole units


class Array(NamedTuple):
    """A tensor (batch, heads, rows, columns) as kernels take it: where it starts, and its strides in elements."""

    at: Any
    batch: int
    head: int
    row: int
    col: int


class Number(NamedTuple):
    """A number as kernels take it: two float32 whose sum has 48 bits, where sums are in float64."""

    high: float
    low: float = 0.0


class Scores(NamedTuple):
    """What happens to scores between the two products, as kernels take it; None: not at all."""

    scale: Number
    softcap: Number | None
    bend: Number | None  # scale / softcap
    first: int | None  # query i attends keys i + first .. i + end - 1
    end: int | None
    bias: Array | None
    sinks: Any  # (heads,)
    seed: Any  # of dropout
    least: int  # 32-bit random words at or above it (unsigned) are kept
    kept: Number  # what a kept probability is multiplied by
    first_row: int  # Task.first_row


class Options(NamedTuple):
    """What, besides sizes and type, decides how much a block of a kernel holds."""

    bias: bool = False
    dropout: bool = False
    softcap: bool = False
    listed: bool = False  # a mask that is no band


@dataclass(frozen=True)
class Task:
    """Tensors of one call, or of a part of it, as (batch, heads, rows, columns); checked and expanded, of any strides.

    lse and delta are (batch, heads, n_q), contiguous, of the sums' type. first_row: the number of this part's first row
    among all rows of all heads of the call, by which dropout goes.
    """

    sizes: Sizes  # of one leading dimension, the batch
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    scale: float
    softcap: float = 0.0
    first: int | None = None  # None: open
    end: int | None = None
    mask: Mask | None = None  # one that is no band
    planes: Tensor | None = None  # int32 (batch, key heads): which of the mask's planes each stream sees
    bias: Tensor | None = None  # (batch, heads, n_q, n_k)
    sinks: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    first_row: int = 0
    dout: Tensor | None = None
    dlse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    delta: Tensor | None = None
    dbias: Tensor | None = None  # as bias

    @property
    def rows(self) -> int:
        """Of one stream: the queries of all heads that share a key head."""
        return self.sizes.n_q * self.sizes.group

    @property
    def streams(self) -> int:
        return self.sizes.streams

    @property
    def options(self) -> Options:
        return Options(self.bias is not None, self.seed is not None, bool(self.softcap), self.mask is not None)

    @property
    def plain(self) -> bool:
        """Whether scores need no more than a positive factor, which the exponential takes along, and no large one."""
        return not self.softcap and self.bias is None and 0 < self.scale <= STEEP

    @property
    def scores(self) -> Scores:
        least = int(self.dropout * 2**32)
        return Scores(
            self.number(self.scale),
            self.number(self.softcap) if self.softcap else None,
            self.number(self.scale / self.softcap) if self.softcap else None,
            self.first,
            self.end,
            None if self.bias is None else array(self.bias),
            self.sinks,
            self.seed,
            least - 2**32 if least >= 2**31 else least,
            self.number(1 / (1 - self.dropout)),
            self.first_row,
        )

    def number(self, x: float) -> Number:
        """Raises RedblueError where float32 has no such number."""
        if abs(x) > MOST_NUMBER:
            raise RedblueError(
                f"scale, softcap and their ratio must be at most {MOST_NUMBER:.3g} in size on a GPU, got {x:g}: "
                "multiply q by the scale beforehand"
            )
        if self.lse.dtype == torch.float32:
            return Number(x)
        high = struct.unpack("f", struct.pack("f", x))[0]
        return Number(high, x - high)

    def lists(self, rows: int, cols: int, by: str, span: int | None = None) -> Lists | None:
        """Of a mask that is no band, for tiles of so many rows and keys; by: "rows" stay, or "cols".

        span: of keys, a multiple of cols, that have lists of their own; None: all.
        """
        if self.mask is None:
            return None
        sizes = self.sizes
        found = lists(self.mask, sizes.n_q, sizes.n_k, sizes.group, rows, cols, by, self.q.device, span)
        planes = first_plane(self.q.device) if self.planes is None else self.planes
        in_use((*found[1:], planes))
        return found._replace(planes=Plane(planes, *planes.stride()))

    @property
    def wide(self) -> bool:
        """Whether some offset within a stream takes more than 32 bits."""
        everything = (self.q, self.k, self.v, self.out, self.bias, self.dout, self.dq, self.dk, self.dv)
        return any(x is not None and reach(x) >= 2**31 for x in everything)


def reach(x: Tensor) -> int:
    """The largest offset of an element within a batch entry, in elements."""
    return sum((size - 1) * stride for size, stride in zip(x.shape[1:], x.stride()[1:], strict=True))


def array(x: Tensor | None) -> Array:
    assert x is not None  # what a direction has
    return Array(x, *x.stride())


class Run(NamedTuple):
    """One launch of one kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int

    @property
    def positional(self) -> list[Any]:
        """The arguments in order: as keywords Triton refuses some names, such as stream, when it compiles."""
        return [self.arguments[name] for name in self.kernel.arg_names]

    @property
    def settings(self) -> dict[str, Any]:
        """What Triton is told. Products and sums are fused: from 3.10 on it would not do so unasked."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def __call__(self) -> None:
        if all(self.grid):
            self.kernel[self.grid](*self.positional, **self.settings)


def parts(d: int) -> tuple[int, int]:
    """Two powers of two (the second may be 0, else at least 16) that hold d: a tensor core's sizes for any d.

    One alone where that pads d by no more than a third of it.
    """
    whole = max(16, 1 << (d - 1).bit_length())
    if whole == 16 or 4 * d > 3 * whole:
        return whole, 0
    half = whole // 2
    return half, max(16, 1 << (d - half - 1).bit_length())
