"""The axes of a sweep: what each is called, which values it takes, and how these are written."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redblue import schedules
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError
from redblue.catalogue.memories import Memory
from redblue.masks import Mask
from redblue.masks.names import parse as parse_mask
from redblue.problem import DIRECTIONS

LEAST = {"window": 0} | dict.fromkeys(("n", "n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads", "words"), 1)
NAMES = ("mask", "dtype", "direction", "memory", "schedule")
GRAMMAR = "VALUE, a list A,B,C, or a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"
EXAMPLES = "such as 128, or 64,128,256, or 1024:65536:x2 (times 2), or 128:512:+64 (plus 64)"
MOST_VALUES = 100_000  # of one axis
LARGEST = 10**18  # of an axis' numbers: far beyond any problem, and safe to calculate with
MOST_DIGITS = 1000  # of a number with leading zeros
MOST_QUOTED = 60  # characters of what was given, in an error

RANGE = re.compile(r"(\d+):(\d+):(?:x(\d+(?:\.\d+)?)|\+(\d+))", re.ASCII)
WHOLE = re.compile(r"(?<![\d.])\d+", re.ASCII)  # not what follows a decimal point
COMMA = re.compile(r",(?!\s*\d)")  # a comma before a digit belongs to a mask: window:1024,0


@dataclass(frozen=True)
class Axis:
    """What a sweep goes through, without repetitions.

    values: whole numbers; for mask, dtype, direction, memory and schedule, texts (or Mask and Memory objects).
    """

    name: str
    values: tuple[Any, ...]

    @property
    def is_number(self) -> bool:
        return self.name in LEAST

    @property
    def geometric(self) -> bool:
        """Whether the values grow by factors rather than by steps, so that a picture should show logarithms."""
        ends = min(self.values, default=0), max(self.values, default=0)
        if not self.is_number or len(self.values) < 3 or ends[0] < 1:
            return False
        ordered, last = sorted(self.values), len(self.values) - 1
        ratio, step = (ends[1] / ends[0]) ** (1 / last), (ends[1] - ends[0]) / last
        by_factor = sum(abs(value - ends[0] * ratio**i) for i, value in enumerate(ordered))
        return by_factor < sum(abs(value - ends[0] - step * i) for i, value in enumerate(ordered))

    @property
    def labels(self) -> list[Any]:
        """The values as they stand in a table."""
        return [value.name if isinstance(value, Memory) else _plain(value) for value in self.values]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else repr(value)


def make_axis(name: str, given: Any) -> Axis:
    """The axis from text in the grammar above, from one value, or from several.

    Raises RedblueError for an unknown axis, text of no such form, numbers that are too small, and unknown names.
    """
    if name not in LEAST and name not in NAMES:
        raise RedblueError(f"there is no axis {name!r}; the axes are {', '.join((*LEAST, *NAMES))}")
    several = isinstance(given, Iterable) and not isinstance(given, (str, Mask, Memory))
    parse = _number if name in LEAST else _name
    values = [value for part in (given if several else [given]) for value in parse(name, part)]
    if not values:
        raise RedblueError(f"{name} has no values: give {EXAMPLES if name in LEAST else 'at least one'}")
    if name in LEAST:
        return Axis(name, tuple(dict.fromkeys(values)))
    return Axis(name, tuple(value for i, value in enumerate(values) if value not in values[:i]))


def _number(name: str, given: Any) -> Sequence[int]:
    if isinstance(given, str):
        found = [value for part in given.split(",") for value in _numbers(name, part.strip(), given)]
    else:
        try:
            found = [operator.index(given)]
        except TypeError:
            found = []
        if isinstance(given, bool) or not found:
            raise RedblueError(f"{name} must be whole numbers, got {given!r}")
        if abs(found[0]) > LARGEST:
            raise _too_large(name, f"a number of {found[0].bit_length():,} bits")
    if min(found) < LEAST[name]:
        raise RedblueError(f"{name} must be at least {LEAST[name]}, got {min(found)}")
    return found


def _too_large(name: str, given: str) -> RedblueError:
    return RedblueError(f"{name} takes numbers of at most 10^18: give smaller ones; got {given}")


def _quoted(text: str) -> str:
    """What was given, as far as it is of use."""
    return repr(text) if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]!r}... ({len(text):,} characters)"


def _numbers(name: str, part: str, text: str) -> Sequence[int]:
    """What one part of a list stands for: a number, or a range."""
    # Before any conversion: Python refuses to read thousands of digits, and floats to hold hundreds.
    if any(len(digits) > MOST_DIGITS or int(digits) > LARGEST for digits in WHOLE.findall(part)):
        raise _too_large(name, _quoted(part))
    if re.fullmatch(r"\d+", part, re.ASCII):
        return [int(part)]
    found = RANGE.fullmatch(part)
    if found is None:
        raise RedblueError(f"{name} takes {GRAMMAR}, {EXAMPLES}; got {_quoted(text)}")
    first, last, step = int(found[1]), int(found[2]), int(found[4] or 0)
    factor = float(found[3] or 1) if "." in (found[3] or "") else int(found[3] or 1)
    if first > last:
        raise RedblueError(f"{name}: a range goes up, so its first number is not above its last; got {_quoted(part)}")
    if step < 1 and (factor <= 1 or first < 1):
        raise RedblueError(
            f"{name}: a range needs a step of at least +1, or a factor above x1 and a first number of at least 1; "
            f"got {_quoted(part)}"
        )
    size = (last - first) // step + 1 if step else math.log(last / first) / math.log(factor) + 1
    if size > MOST_VALUES:
        raise RedblueError(
            f"{name}: {_quoted(part)} has {size:,.0f} values, at most {MOST_VALUES:,} are taken; go faster"
        )
    if step:
        return range(first, last + 1, step)
    return [value for i in range(math.ceil(size) + 1) if (value := round(first * factor**i)) <= last]


def _name(name: str, given: Any) -> Sequence[Any]:
    if isinstance(given, Mask if name == "mask" else Memory if name == "memory" else ()):
        return [given]
    if name == "mask" and _is_mask(str(given).strip()):
        return [str(given).strip()]
    parts = COMMA.split(str(given)) if name == "mask" else str(given).split(",")
    return [_known(name, part.strip()) for part in parts]


def _is_mask(text: str) -> bool:
    """Whether it is a single mask, such as one of a file that has a comma in its name."""
    try:
        parse_mask(text)
    except RedblueError:
        return False
    return True


def _known(name: str, value: str) -> str:
    """The value, if it stands for something; masks and memories are looked up when the sweep is made."""
    checks: dict[str, Callable[[], bool]] = {
        "dtype": lambda: value in BYTES_PER_WORD,
        "direction": lambda: value in DIRECTIONS,
        "schedule": lambda: bool(schedules.get(value)),  # raises UnknownName, with the nearest
    }
    if name in checks and not checks[name]():
        allowed = ", ".join(BYTES_PER_WORD if name == "dtype" else DIRECTIONS)
        raise RedblueError(f"{name} must be of {allowed}; got {value!r}")
    if not value:
        raise RedblueError(f"{name} has an empty value: leave out the comma that is too many")
    return value
