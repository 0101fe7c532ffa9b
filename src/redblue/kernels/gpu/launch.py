"""The arguments of a call on a GPU, and launches of kernels as data, which can be run, compiled or counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.kernels.gpu.arrays import Array
from redblue.kernels.gpu.mask_lists import LISTS, Lists, first_plane, lists
from redblue.kernels.gpu.planning.device import in_use
from redblue.kernels.gpu.scores import Scores, is_plain, scores_of
from redblue.kernels.options import Options
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask

TMA_ALIGNED_BYTES = 16  # alignment of addresses and strides


class PlanOptions(NamedTuple):
    """The options that a plan depends on, because they cost shared memory, registers or spilled memory.

    Sinks and ALiBi's slopes cost next to nothing, so they are left out.
    """

    bias: bool = False
    dropout: bool = False
    softcap: bool = False
    listed: bool = False  # a mask that is not a band
    aliased: bool = False  # paged values that are read as a slice of the keys
    by_tma: bool = False  # whether the spilling kernels that load by TMA support the call, on a card with TMA
    by_gluon: str = ""  # "full" or "band": the mask of a call that the Gluon kernels support, on cards that run them
    any_order: bool = False  # whether a backward call may add sums in any order and so need not be reproducible


@dataclass(frozen=True)
class Task:
    """The checked tensors and options of one call, or of one part of its batch.

    Tensors are (batch, heads, rows, columns), expanded, of any strides; lse and delta are (batch, heads, n_q),
    contiguous, in the type of the sums.
    """

    sizes: Sizes  # with one leading dimension, the batch
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    # The call's options: numbers with their defaults applied (Options.numbers); arrays expanded, with one leading
    # dimension, except sinks (heads,) and packed positions; no mask
    record: Options = field(default_factory=Options)
    first: int | None = None  # query i attends keys i + first .. i + end - 1; None: without limit
    end: int | None = None
    mask: Mask | None = None  # None if it is a band
    planes: Tensor | None = None  # int32 (batch, key heads): the mask plane of each stream
    first_row: int = 0  # this part's first row among all rows of all heads of the call; dropout numbers rows from it
    cut_keys: int = 0  # unattended keys that were cut off after the n_k keys of `sizes`
    dout: Tensor | None = None
    dlse: Tensor | None = None
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    delta: Tensor | None = None
    dbias: Tensor | None = None  # shaped like the record's bias

    @staticmethod
    def of(**arguments: Any) -> Task:
        """The task with these fields. Arguments that are not fields are options and become its record."""
        task_fields = {name: arguments.pop(name) for name in _FIELDS & arguments.keys()}
        return Task(**task_fields, record=Options(**arguments))

    @property
    def rows(self) -> int:
        """Rows of one stream: the queries of all heads that share a key head."""
        return self.sizes.n_q * self.sizes.group

    @property
    def streams(self) -> int:
        return self.sizes.streams

    @cached_property
    def plan_options(self) -> PlanOptions:
        record = self.record
        return PlanOptions(
            record.bias is not None,
            record.seed is not None,
            bool(record.softcap),
            self.mask is not None,
            by_tma=self.by_tma,
            by_gluon=self.by_gluon,
            any_order=self.dout is not None and not torch.are_deterministic_algorithms_enabled(),
        )

    @cached_property
    def by_tma(self) -> bool:
        """Whether spilled/tma supports this task: hopper/ supports it, and it has no mask or a causal band."""
        some_attend = self.end is None or self.sizes.n_q - 1 + self.end >= 1
        return self.first is None and some_attend and bool(self.by_gluon)

    @cached_property
    def by_gluon(self) -> str:
        """The mask, "full" or "band", if hopper/ supports this task: plain scores, and arrays that TMA accepts."""
        record = self.record
        if not self.plain or record.seed is not None or record.sinks is not None or self.mask is not None:
            return ""
        arrays = self.q, self.k, self.v, self.out, self.dout, self.dq, self.dk, self.dv
        if not all(x is None or _tma_takes(x) for x in arrays):
            return ""
        return "full" if self.first is None and self.end is None else "band"

    @cached_property
    def plain(self) -> bool:
        """Whether scores need only a positive factor that is not large, which can be applied in the exponential."""
        return is_plain(self.record, self.sizes)

    @cached_property
    def scores(self) -> Scores:
        return scores_of(self)

    def lists(self, rows: int, cols: int, by: str, span: int | None = None) -> Lists | None:
        """The lists of a mask that is not a band, for tiles of rows x cols.

        by: whether "rows" or "cols" stay. span: each range of `span` keys, a multiple of cols, has its own lists; None:
        one list for all keys.
        """
        if self.mask is None:
            return None
        sizes = self.sizes
        result = lists(self.mask, sizes.n_q, sizes.n_k, sizes.group, rows, cols, by, self.q.device, span)
        planes = first_plane(self.q.device) if self.planes is None else self.planes
        batch, head = planes.stride()
        in_use((*result[LISTS], planes))
        return result._replace(planes=planes, plane_batch=batch, plane_head=head)

    @cached_property
    def wide(self) -> bool:
        """Whether some offset within a stream needs more than 32 bits."""
        everything = (self.q, self.k, self.v, self.out, *self.record.arrays, self.dout, self.dq, self.dk, self.dv)
        return any(x is not None and reach(x) >= 2**31 for x in everything)


_FIELDS = {entry.name for entry in fields(Task)} - {"record"}


def reach(x: Tensor) -> int:
    """The largest offset of an element within a batch entry, in elements."""
    return _reach(x.shape[1:], x.stride()[1:])


@lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _tma_takes(x: Tensor) -> bool:
    """Whether TMA descriptors can describe the tensor: aligned rows of adjacent elements, without broadcasting."""
    return x.data_ptr() % TMA_ALIGNED_BYTES == 0 and _tma_takes_rows(x.shape, x.stride(), x.itemsize)


@lru_cache(maxsize=1024)
def _tma_takes_rows(shape: tuple[int, ...], strides: tuple[int, ...], element_bytes: int) -> bool:
    aligned = TMA_ALIGNED_BYTES // element_bytes
    apart = [stride for size, stride in zip(shape[:-1], strides[:-1], strict=True) if size > 1]
    adjacent = strides[-1] == 1 or shape[-1] == 1
    return adjacent and all(stride > 0 and stride % aligned == 0 for stride in apart)


def array(x: Tensor | None) -> Array:
    """The tensor in the form for kernels. It is never None: callers pass tensors that the task has."""
    assert x is not None
    return Array(x, *x.stride())


def alignment(arguments: dict[str, Any]) -> int:
    """The largest power of two up to 16 that divides the strides of all arrays, except column strides."""
    strides = (
        stride
        for x in arguments.values()
        if isinstance(x, Array)
        for size, stride in zip(x.pointer.shape, (x.batch, x.head, x.row), strict=False)
        if size > 1
    )
    return math.gcd(16, *strides)


class Run(NamedTuple):
    """One launch of one kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int

    @property
    def positional(self) -> list[Any]:
        """The arguments in order, since Triton refuses some names, such as stream, as keywords."""
        return [self.arguments[name] for name in self.kernel.arg_names]

    @property
    def settings(self) -> dict[str, Any]:
        """Triton's own options. From Triton 3.10 on, fused multiply-adds must be enabled explicitly."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def __call__(self) -> Any:
        """Launch the kernel. Returns the compiled kernel; None for an empty grid, or where kernels are interpreted."""
        return self.kernel[self.grid](*self.positional, **self.settings) if all(self.grid) else None


def parts(d: int) -> tuple[int, int]:
    """Widths of two tiles that hold d features: powers of two of at least 16, as tensor cores require.

    The second is 0 where one tile pads d by no more than a third.
    """
    padded = max(16, 1 << (d - 1).bit_length())
    if padded == 16 or 4 * d > 3 * padded:
        return padded, 0
    half = padded // 2
    return half, max(16, 1 << (d - half - 1).bit_length())
