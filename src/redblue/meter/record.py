"""The record that every meter returns: measured words at a boundary, beside counted words and the lower bound."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from redblue.base.errors import RedblueError


@dataclass(frozen=True)
class Amount:
    """An amount of a unit that moved across a boundary.

    a / b is a number; a + b and a - b are amounts; <, <=, >, >= compare. Each raises RedblueError if the amounts differ
    in unit or boundary.
    """

    value: float
    unit: str
    boundary: str

    def _comparable(self, other: Amount) -> float:
        """The value of the other amount. Raises RedblueError if the two differ in unit or boundary."""
        if not isinstance(other, Amount):
            raise RedblueError(f"{self.unit} at {self.boundary} can only be compared with an Amount, got {other!r}")
        for kind, own, others in (
            ("unit", self.unit, other.unit),
            ("boundary", self.boundary, other.boundary),
        ):
            if own != others:
                raise RedblueError(
                    f"{self} and {other} cannot be compared: the {kind} of one is {own}, of the other {others}; "
                    f"measure both at one boundary and in one unit"
                )
        return other.value

    def __truediv__(self, other: Amount) -> float:
        value = self._comparable(other)
        if not value:
            raise RedblueError(f"cannot divide {self} by {other}: the divisor must not be 0")
        return self.value / value

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + self._comparable(other), self.unit, self.boundary)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.value - self._comparable(other), self.unit, self.boundary)

    def __lt__(self, other: Amount) -> bool:
        return self.value < self._comparable(other)

    def __le__(self, other: Amount) -> bool:
        return self.value <= self._comparable(other)

    def __gt__(self, other: Amount) -> bool:
        return self.value > self._comparable(other)

    def __ge__(self, other: Amount) -> bool:
        return self.value >= self._comparable(other)

    def __str__(self) -> str:
        return f"{self.value:,.0f} {self.unit} at {self.boundary}"


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    problem: as plain data; None for a function that is not a kernel of redblue. kernel: the name of the measured code.
    schedule, tiles: the schedule and tiles that the kernel follows; None and {} if not known. boundary: "FAST/SLOW",
    the names of its two sides. capacity_bytes: capacity of the fast side, None if not known. bytes_read, bytes_written:
    bytes that crossed the boundary towards the fast side, and back. bytes_per_word: the size of a word.
    counted_words: words of the schedule's closed form with these tiles; None if not known. bound_words: the lower bound
    for this problem and capacity; None if not known.
    meter: the meter's name. how: its method. tool: program and version. date: local, ISO 8601.
    parts: the components of the bytes, and further counts of the meter, each with its unit in its name.
    """

    problem: Mapping[str, Any] | None
    kernel: str
    schedule: str | None
    tiles: Mapping[str, int]
    boundary: str
    capacity_bytes: int | None
    bytes_read: int
    bytes_written: int
    bytes_per_word: int
    counted_words: int | None
    bound_words: int | None
    meter: str
    how: str
    tool: str
    date: str
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        return f"words of {self.bytes_per_word} bytes"

    @property
    def measured_words(self) -> float:
        """Words read and written: a whole number, unless lines or sectors hold no whole number of words."""
        words = (self.bytes_read + self.bytes_written) / self.bytes_per_word
        return int(words) if words.is_integer() else words

    @property
    def measured(self) -> Amount:
        """The measured words as an Amount."""
        return Amount(self.measured_words, self.unit, self.boundary)

    @property
    def counted(self) -> Amount:
        """The counted words as an Amount. Raises RedblueError if they are not known."""
        return self._amount("counted", self.counted_words)

    @property
    def bound(self) -> Amount:
        """The lower bound as an Amount. Raises RedblueError if it is not known."""
        return self._amount("bound", self.bound_words)

    def _amount(self, kind: str, words: int | None) -> Amount:
        if words is None:
            raise RedblueError(
                f"the {kind} words of {self.kernel} are not known: measure the problem itself, with redblue.measure"
            )
        return Amount(words, self.unit, self.boundary)

    @property
    def over_counted(self) -> float | None:
        """Measured words over counted ones."""
        return self.measured / self.counted if self.counted_words else None

    @property
    def over_bound(self) -> float | None:
        """Measured words over the lower bound."""
        return self.measured / self.bound if self.bound_words else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        derived = {name: getattr(self, name) for name in ("measured_words", "over_counted", "over_bound")}
        return asdict(self) | derived

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Make the record that `to_dict` wrote. Raises RedblueError, which names the missing fields."""
        missing = [entry.name for entry in fields(cls) if entry.name not in data and entry.name != "parts"]
        if missing:
            raise RedblueError(f"this is no measurement: it has no {', '.join(missing)}")
        return cls(**{entry.name: data[entry.name] for entry in fields(cls) if entry.name in data})

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Make the record that `to_json` wrote. Raises RedblueError for other text."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise RedblueError(f"this is no measurement: it is not JSON ({error})") from error
        if not isinstance(data, dict):
            raise RedblueError(f"this is no measurement: it is {type(data).__name__}, not an object")
        return cls.from_dict(data)


def now() -> str:
    """The local date and time, ISO 8601."""
    return datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
