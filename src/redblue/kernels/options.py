"""The options of a call: their names, their checks, and the one record that carries them from users to kernels.

A new option needs one entry in `CommonArguments` (or in the arguments of the calls that take it), one in `Options` and
one in `TABLE` below, and its arithmetic in the kernels and in redblue.lab.reference. The public signatures, PyTorch's
ops, autograd, vmap, autocast, paged calls, JAX, calls of several processes and the calls of the kernels follow from
these three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

from redblue.base.dtypes import COMPUTED, DTYPE_CODES, dtype_name
from redblue.base.errors import RedblueError
from redblue.base.floats import finite_number
from redblue.base.integers import whole_number
from redblue.compiled import _core
from redblue.kernels.mask_argument import OPEN, MaskArgument
from redblue.kernels.positions import HEADER_SIZE, positions_of
from redblue.kernels.sizes import Sizes
from redblue.kernels.table import REQUESTABLE
from redblue.masks import Mask

Memory = tuple[int, tuple[int, ...], Any]  # an array's address, its strides in elements, and its library's type


class CommonArguments(TypedDict, total=False):
    """Keyword arguments that every call takes. The classes below add the options that only some calls take."""

    scale: float | None
    softcap: float | None
    sinks: Any
    alibi: Any


class PackedArguments(CommonArguments, total=False):
    """Keyword arguments of `attention_varlen`: all options except a bias and positions."""

    mask: Mask | None
    dropout: float
    seed: int | None
    schedule: str


class Arguments(PackedArguments, total=False):
    """Keyword arguments of `attention` and `attention_backward`: all options."""

    bias: Any
    positions: Any


class PagedArguments(CommonArguments, total=False):
    """Keyword arguments of `attention_paged`: the options of generation."""

    mask: Any
    bias: Any


class DistributedArguments(CommonArguments, total=False):
    """Keyword arguments of `redblue.distributed.attention`. Its docstring explains its mask and its schedule."""

    dropout: float
    seed: int | None
    bias: Any


class JaxArguments(CommonArguments, total=False):
    """Keyword arguments of `redblue.jax.dot_product_attention`, except mask, bias and seed, which have JAX's types."""

    dropout: float
    schedule: str


class Options(NamedTuple):
    """The options of one call: first the options that are not tensors in PyTorch's ops, then the seed, then the arrays.

    Arrays with a gradient come before arrays without one.
    Users give a Mask, a seed and positions; PyTorch's ops take a MaskArgument (None: all keys), the seed as a tensor
    (None without dropout) and the positions as one array (redblue.kernels.positions).
    """

    mask: Any = None
    schedule: str = "auto"
    scale: float | None = None  # None: 1 / sqrt(d)
    softcap: float | None = None
    dropout: float = 0.0
    seed: Any = None
    bias: Any = None
    sinks: Any = None
    alibi: Any = None
    positions: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The values of the options in ARRAYS."""
        return self[_FIRST_ARRAY:]

    @property
    def has_arrays(self) -> bool:
        """Whether any of the options in ARRAYS is given. A loop, because a generator slows tiny calls down."""
        for x in self[_FIRST_ARRAY:]:  # noqa: SIM110
            if x is not None:
                return True
        return False

    @property
    def with_gradient(self) -> tuple[Any, ...]:
        """The values of the options in WITH_GRADIENT."""
        return self[_FIRST_ARRAY:_FIRST_WITHOUT_GRADIENT]

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The values of the options that are tensors in PyTorch's ops: the seed and the arrays."""
        return self[_SEED:]

    @property
    def others(self) -> tuple[Any, ...]:
        """The values of the other options. Options(*others, *tensors) is the record again."""
        return self[:_SEED]

    @property
    def flat(self) -> tuple[Any, ...]:
        """The record as arguments of PyTorch's ops, in the order of SCHEMA. `mask` must be a MaskArgument or None."""
        return (*(self.mask or OPEN), *self[1:])

    @staticmethod
    def unflatten(flat: Sequence[Any]) -> Options:
        """The inverse of `flat`."""
        return Options(MaskArgument(*flat[:_MASK_PARTS]), *flat[_MASK_PARTS:])

    def with_mask(self, mask: MaskArgument) -> Options:
        """The record with this mask. Faster than _replace, which takes a microsecond."""
        return tuple.__new__(Options, (mask, *self[1:]))

    @property
    def by_position(self) -> bool:
        """Whether the results depend on the positions of the queries and keys in the whole problem."""
        return bool(self.dropout) or any(rules.by_position for _, rules, _ in self.present_arrays())

    def present_arrays(self) -> list[tuple[str, ArrayOption, Any]]:
        """Name, rules and value of each array that is not None."""
        return [(name, rules, x) for (name, rules), x in zip(ARRAYS.items(), self.arrays, strict=True) if x is not None]

    @property
    def for_backward(self) -> Options:
        """The record without the arrays that the backward kernels do not read."""
        if not self.has_arrays:
            return self
        return self._replace(**{name: None for name, rules, _ in self.present_arrays() if not rules.backward})

    def numbers(self, sizes: Sizes) -> dict[str, float]:
        """The options that are numbers, by the names of the kernels' arguments, with defaults applied.

        Raises RedblueError for a number outside the range of the kernels: see `check_size`.
        """
        scale, softcap = self.scale, self.softcap or 0.0
        if scale is None:
            scale = sizes.d**-0.5  # always within the range
        else:
            check_size("scale", scale)
        if softcap:
            check_size("softcap", softcap)
            check_size("scale / softcap", scale / softcap)
        return {"scale": scale, "softcap": softcap, "dropout": self.dropout}

    def core_arguments(
        self, sizes: Sizes, arrays: Mapping[str, Any], memory_of: Callable[[Any], Memory]
    ) -> dict[str, Any]:
        """The numbers, the seed and the arrays as keyword arguments of the compiled core's call.

        arrays: the options in ARRAYS that the pass reads, each expanded to its ArrayOption.shape. memory_of: maps such
        an array to its memory.
        """
        arguments: dict[str, Any] = self.numbers(sizes)
        if self.seed is not None:
            arguments["seed"] = int(self.seed) % 2**64
        for name, x in arrays.items():
            rules, (address, strides, dtype) = ARRAYS[name], memory_of(x)
            arguments[name] = rules.as_core_array(address, strides, sizes)
            if rules.own_type:
                arguments[f"{name}_number"] = _code_of(dtype)
        return arguments


@lru_cache(maxsize=64)
def _code_of(dtype: Any) -> int:
    """The code of a type of NumPy or PyTorch. NumPy takes 8 us to find the type's name."""
    return DTYPE_CODES[dtype_name(dtype)]


class ArrayOption(NamedTuple):
    """The rules for an option that is an array."""

    pairs: bool = False  # whether it has queries and keys as its last two dimensions
    lead: bool = True  # whether it broadcasts to (lead..., heads); else it is (heads,)
    gradient: bool = True
    backward: bool = True  # whether the backward kernels read it
    own_type: bool = False  # whether it keeps its type, which may be boolean; else it is converted to the sums' type
    places: bool = False  # whether it is packed positions: int64, and one-dimensional
    by_position: bool = False  # whether its effect on a pair depends on the positions of both in the whole problem

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in which kernels read it."""
        if self.places:
            return (HEADER_SIZE + sizes.n_q + sizes.n_k,)
        lead = sizes.lead if self.lead else ()
        return (*lead, sizes.heads, *((sizes.n_q, sizes.n_k) if self.pairs else ()))

    def as_core_array(self, address: int, strides: Sequence[int], sizes: Sizes) -> _core.Array:
        """The array for the compiled core. strides: the strides of the array expanded to `shape`."""
        if self.pairs:
            return _core.Array(address, tuple(strides))
        if self.lead:
            return _core.Array(address, (*strides, 0, 0))
        leading = (0,) * (len(sizes.lead) + 1)
        return _core.Array(address, (*leading, *strides, 0))  # its only dimension lies along the rows

    @property
    def is_converted(self) -> bool:
        """Whether it is converted to the type of sums."""
        return not self.own_type and not self.places

    @property
    def missing(self) -> int:
        """Number of q's last dimensions that the option does not have."""
        return 0 if self.pairs else 2


class Option(NamedTuple):
    """One option: its type in the schema of PyTorch's ops, its line in help(), and its rules if it is an array."""

    schema: str
    help: str
    array: ArrayOption | None = None


TABLE = {
    "mask": Option(
        "SymInt left, SymInt right, bool bottom_right, str mask",
        "the keys that each query attends; Mask.full() if None. A row that attends nothing gives 0.",
    ),
    "schedule": Option(
        "str schedule",
        '"flash" (tiles); "hybrid" or "small_cache", which move fewer words through caches below d^2 words and write '
        'some rows of P at a time to memory; "gather" (pair by pair, for graphs; a GPU runs another schedule instead); '
        'or "auto": the cheapest of flash and gather on the CPU, of flash, hybrid and small_cache on a GPU.',
    ),
    "scale": Option("float? scale", "1 / sqrt(d) if None."),
    "softcap": Option("float? softcap", "scores x become softcap tanh(x / softcap)."),
    "dropout": Option(
        "float dropout",
        "the share of probabilities that become 0. The seed alone decides which ones: they do not depend on tiles or "
        "threads, and are the same in both passes.",
    ),
    "seed": Option(
        "Tensor? seed",
        "the seed of dropout; drawn from PyTorch's generator if None; NumPy arrays with dropout need one.",
    ),
    "bias": Option(
        "Tensor? bias",
        "added to the scores, after softcap; any shape that broadcasts to (..., H, n_q, n_k); a boolean one is True "
        "where a query attends a key.",
        ArrayOption(pairs=True, own_type=True),
    ),
    "sinks": Option(
        "Tensor? sinks",
        "(H,), one more score per head that enters the softmax's denominator and has no value.",
        ArrayOption(lead=False, backward=False),
    ),
    "alibi": Option(
        "Tensor? alibi",
        "slopes, (H,) or any shape that broadcasts to (..., H): -slope |i + n_k - n_q - j| is added to the score of "
        "query i and key j, after softcap; the slopes have no gradient.",
        ArrayOption(gradient=False, by_position=True),
    ),
    "positions": Option(
        "Tensor? positions",
        "for a block of a whole problem: a pair (queries, keys) of whole numbers (n_q,) and (n_k,), or a "
        "redblue.Positions, which also holds the whole problem's sizes. alibi and dropout use these positions; the "
        "mask is the block's own. None: the call is the whole problem.",
        ArrayOption(lead=False, gradient=False, places=True),
    ),
}
ARRAYS = {name: option.array for name, option in TABLE.items() if option.array is not None}
WITH_GRADIENT = tuple(name for name, rules in ARRAYS.items() if rules.gradient)
WITHOUT_GRADIENT = tuple(name for name, rules in ARRAYS.items() if not rules.gradient)
SCHEMA = ", ".join(option.schema for option in TABLE.values())
NO_GRADIENTS = Options(MaskArgument(*[None] * len(MaskArgument._fields)), *[None] * (len(TABLE) - 1))  # pyright: ignore

# The kernels compute with scale, softcap and their ratio in float32 or, for float64 arrays on a GPU, in two float32.
# The number times log2(e) must not overflow, and the number times 2^-24 must not be denormal.
MIN_SIZE, MAX_SIZE = 1e-30, 1e38

_MASK_PARTS = len(MaskArgument._fields)
_NO_DROPOUT = Options().dropout
_SEED = Options._fields.index("seed")
_FIRST_ARRAY = _SEED + 1
_FIRST_WITHOUT_GRADIENT = _FIRST_ARRAY + len(WITH_GRADIENT)


# Checks --------------------------------------------------------------------------------------------------------------


def checked(options: Options) -> Options:
    """The options with numbers converted to Python's types. Raises RedblueError for a value that is not allowed.

    Arrays are checked by `check_array`, against the sizes of the call.
    """
    mask, schedule, scale, softcap, dropout, seed = options[:_FIRST_ARRAY]
    if mask is not None:
        check_mask(mask)
    if not isinstance(schedule, str) or (schedule != "auto" and schedule not in REQUESTABLE):
        known = ", ".join(REQUESTABLE)
        raise RedblueError(f"schedule must be one of auto, {known} (the schedules with a kernel), got {schedule!r}")
    changed: dict[str, Any] = {}
    if scale is not None:
        number = finite_number("scale", scale)
        check_size("scale", number)
        if number is not scale:
            changed["scale"] = number
    if softcap is not None:
        number = finite_number("softcap", softcap)
        if not number > 0:
            raise RedblueError(f"softcap must be above 0, or None, got {number!r}")
        check_size("softcap", number)
        if number is not softcap:
            changed["softcap"] = number
    if dropout is not _NO_DROPOUT:
        number = finite_number("dropout", dropout)
        if not 0 <= number < 1:
            raise RedblueError(f"dropout must be at least 0 and below 1, got {number!r}")
        if number is not dropout:
            changed["dropout"] = number
    if seed is not None:
        changed["seed"] = _seed(seed)
    if options.positions is not None:
        changed["positions"] = positions_of(options.positions)
    return options._replace(**changed) if changed else options


def check_size(name: str, number: float) -> None:
    """Raise RedblueError for a number that is not 0 and is outside the range that every kernel supports."""
    if number and not MIN_SIZE <= abs(number) <= MAX_SIZE:
        zero, advice = "0, or ", "multiply q by the remaining factor beforehand"
        if name == "softcap":  # 0 means no softcap, and a factor of q cannot replace a softcap
            zero, advice = "", "give a softcap nearer to the scores, or None for no softcap"
        raise RedblueError(f"{name} must be {zero}{MIN_SIZE:g} to {MAX_SIZE:g} in size, got {number:g}: {advice}")


def _seed(value: Any) -> int:
    """The seed as a signed 64-bit integer."""
    return (whole_number("seed", value, -math.inf, math.inf) + 2**63) % 2**64 - 2**63


def check_mask(mask: Any) -> None:
    """Raise RedblueError unless this is None or a mask that users may give."""
    if mask is None:
        return
    if not isinstance(mask, Mask):
        raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {type(mask).__name__}")
    if mask.group != 1:
        raise RedblueError(
            f"mask must have one row per query, got {mask.group} rows per query: give the mask before for_group"
        )


def check_gradients(options: Options) -> None:
    """Raise RedblueError for a tensor that requires a gradient that no kernel computes."""
    for i, x in enumerate(options[_FIRST_WITHOUT_GRADIENT:]):
        if x is not None and getattr(x, "requires_grad", False):
            raise RedblueError(f"{WITHOUT_GRADIENT[i]} has no gradient: detach it, or give a bias")


def check_array(name: str, shape: Sequence[int], dtype: str, sizes: Sizes, call_dtype: str) -> None:
    """Raise RedblueError unless an array option has a shape and a type that fit a call of these sizes and this type."""
    rules = ARRAYS[name]
    full = rules.shape(sizes)
    if not rules.lead:
        if tuple(shape) != full:
            content = "four sizes, then one position per query and key" if rules.places else "one per head of q"
            raise RedblueError(f"{name} must have shape {full}, {content}, got {tuple(shape)}")
    else:
        padded = (1,) * (len(full) - len(shape)) + tuple(shape)
        if len(padded) != len(full) or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
            dims = "(..., heads, n_q, n_k)" if rules.pairs else "(..., heads)"
            raise RedblueError(f"{name} must broadcast to {dims} = {full}, got shape {tuple(shape)}")
    allowed = ("int64",) if rules.places else ("bool", *COMPUTED) if rules.own_type else COMPUTED
    if dtype not in allowed:
        raise RedblueError(f"{name} must be of type {', '.join(allowed)}, got {dtype}")
    if rules.own_type and dtype == "float64" != call_dtype:
        raise RedblueError(f"{name} of type float64 needs float64 arrays, got {call_dtype}")


def check_numbers(options: Options) -> None:
    """Raise RedblueError for numbers that PyTorch's ops must not be given."""
    dropout, softcap, seed = options.dropout, options.softcap, options.seed
    if not 0 <= dropout < 1 or (dropout and (seed is None or seed.numel() != 1)):
        raise RedblueError(f"dropout must be at least 0 and below 1 and have one seed, got {dropout} and {seed}")
    if softcap is not None and not softcap > 0:
        raise RedblueError(f"softcap must be above 0, or None, got {softcap}")
