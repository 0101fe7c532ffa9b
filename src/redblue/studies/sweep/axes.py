"""The axes of a sweep: their names, their values, and the text form in which values are given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.integers import parse_size, whole_number
from redblue.base.text import quoted
from redblue.catalogue.memories import Memory
from redblue.masks import Mask
from redblue.masks.names import parse as parse_mask
from redblue.problem import DIRECTIONS

MINIMUM = {"window": 0} | dict.fromkeys(("n", "n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads", "words"), 1)
NAMES = ("mask", "dtype", "direction", "memory", "schedule")
GRAMMAR = "VALUE, a list A,B,C, or a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"
EXAMPLES = "such as 128, or 64,128,256, or 1Ki:64Ki:x2 (times 2), or 128:512:+64 (plus 64)"
MAX_VALUES = 100_000  # values of one axis
MAX_NUMBER = 10**18  # far beyond any problem, and safe to calculate with
MAX_DIGITS = 1000  # digits of a number, leading zeros included

RANGE = re.compile(r"(\d+):(\d+):(?:x(\d+(?:\.\d+)?)|\+(\d+))", re.ASCII)
WHOLE = re.compile(r"(?<![\d.])\d+", re.ASCII)  # whole numbers, but not the digits after a decimal point
SUFFIXED = re.compile(r"(?<![\w.])\d[\d.]*[_a-z][\w+]*", re.ASCII | re.IGNORECASE)  # a size such as 4K, 1e3 or 4_096
COMMA = re.compile(r",(?!\s*\d)")  # a comma before a digit belongs to a mask: window:1024,0


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep.

    values: without repetitions; whole numbers, or, for mask, dtype, direction, memory and schedule, texts (or Mask and
    Memory objects).
    """

    name: str
    values: tuple[Any, ...]

    @property
    def is_number(self) -> bool:
        return self.name in MINIMUM

    @property
    def geometric(self) -> bool:
        """Whether the values grow by factors rather than by steps. A picture then takes a logarithmic scale."""
        ends = min(self.values, default=0), max(self.values, default=0)
        if not self.is_number or len(self.values) < 3 or ends[0] < 1:
            return False
        ordered, last = sorted(self.values), len(self.values) - 1
        ratio, step = (ends[1] / ends[0]) ** (1 / last), (ends[1] - ends[0]) / last
        by_factor = sum(abs(value - ends[0] * ratio**i) for i, value in enumerate(ordered))
        return by_factor < sum(abs(value - ends[0] - step * i) for i, value in enumerate(ordered))

    @property
    def labels(self) -> list[Any]:
        """The values as a table shows them: numbers and texts."""
        return [value.name if isinstance(value, Memory) else _plain(value) for value in self.values]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else repr(value)


def make_axis(name: str, raw: Any) -> Axis:
    """Make an axis from text in the form of GRAMMAR, from one value, or from several values.

    Raises RedblueError for an unknown axis, text of another form, numbers out of range, and unknown names.
    """
    if name not in MINIMUM and name not in NAMES:
        raise UnknownName("axis", str(name), (*MINIMUM, *NAMES))
    several = isinstance(raw, Iterable) and not isinstance(raw, (str, Mask, Memory))
    parse = _number if name in MINIMUM else _name
    values = [value for part in (raw if several else [raw]) for value in parse(name, part)]
    if not values:
        raise RedblueError(f"{name} has no values: give {EXAMPLES if name in MINIMUM else 'at least one'}")
    if name in MINIMUM:
        return Axis(name, tuple(dict.fromkeys(values)))
    return Axis(name, tuple(value for i, value in enumerate(values) if value not in values[:i]))


def _number(name: str, raw: Any) -> Sequence[int]:
    """The values of an axis of numbers, from text or from one number. Raises RedblueError."""
    if isinstance(raw, str):
        values = [value for part in raw.split(",") for value in _numbers(name, part.strip(), raw)]
        whole_number(name, min(values), MINIMUM[name])
        return values
    return [whole_number(name, raw, MINIMUM[name], MAX_NUMBER)]


def _too_large(name: str, raw: str) -> RedblueError:
    return RedblueError(f"{name} takes numbers of at most 10^18: give smaller ones; got {raw}")


def _numbers(name: str, part: str, text: str) -> Sequence[int]:
    """The numbers of one part of a list: one number, or a range. Raises RedblueError.

    text: the whole list, for errors.
    """
    part = SUFFIXED.sub(lambda size: str(parse_size(name, size[0])), part)
    # This check comes before any conversion: int() refuses thousands of digits, and float() overflows at hundreds.
    if any(len(digits) > MAX_DIGITS or int(digits) > MAX_NUMBER for digits in WHOLE.findall(part)):
        raise _too_large(name, quoted(part))
    if re.fullmatch(r"\d+", part, re.ASCII):
        return [int(part)]
    match = RANGE.fullmatch(part)
    if match is None:
        raise RedblueError(f"{name} takes {GRAMMAR}, {EXAMPLES}; got {quoted(text)}")
    first, last, step = int(match[1]), int(match[2]), int(match[4] or 0)
    factor = float(match[3] or 1) if "." in (match[3] or "") else int(match[3] or 1)
    if first > last:
        raise RedblueError(f"{name}: a range goes up, so its first number is not above its last; got {quoted(part)}")
    if step < 1 and (factor <= 1 or first < 1):
        raise RedblueError(
            f"{name}: a range needs a step of at least +1, or a factor above x1 and a first number of at least 1; "
            f"got {quoted(part)}"
        )
    size = (last - first) // step + 1 if step else math.log(last / first) / math.log(factor) + 1
    if size > MAX_VALUES:
        raise RedblueError(
            f"{name}: {quoted(part)} has {size:,.0f} values, at most {MAX_VALUES:,} are taken; take a larger step"
        )
    if step:
        return range(first, last + 1, step)
    return [value for i in range(math.ceil(size) + 1) if (value := round(first * factor**i)) <= last]


def _name(name: str, raw: Any) -> Sequence[Any]:
    """The values of an axis of names, from text or from one object. Raises RedblueError for unknown names."""
    if isinstance(raw, Mask if name == "mask" else Memory if name == "memory" else ()):
        return [raw]
    if name == "mask" and _is_mask(str(raw).strip()):
        return [str(raw).strip()]
    parts = COMMA.split(str(raw)) if name == "mask" else str(raw).split(",")
    return [_known(name, part.strip()) for part in parts]


def _is_mask(text: str) -> bool:
    """Whether the text is a single mask, such as a file with a comma in its name, and not a list."""
    try:
        parse_mask(text)
    except RedblueError:
        return False
    return True


def _known(name: str, value: str) -> str:
    """Return the value if it is known. Masks and memories are looked up later, when the sweep is made."""
    checks: dict[str, Callable[[], bool]] = {
        "dtype": lambda: value in BYTES_PER_WORD,
        "direction": lambda: value in DIRECTIONS,
        "schedule": lambda: bool(schedules.get(value)),  # raises UnknownName, with the nearest names
    }
    if name in checks and not checks[name]():
        allowed = ", ".join(BYTES_PER_WORD if name == "dtype" else DIRECTIONS)
        raise RedblueError(f"{name} must be one of {allowed}; got {value!r}")
    if not value:
        raise RedblueError(f"{name} has an empty value: leave out the comma that is too many")
    return value
