"""What every meter returns: what moved, across which boundary, and beside it what was counted and what is proved."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from redblue.base.errors import RedblueError


@dataclass(frozen=True)
class Amount:
    """So much of a unit, moved across a boundary. Amounts of other units or boundaries are not compared: RedblueError.

    a / b is a number; a + b and a - b are amounts; <, <=, >, >= compare.
    """

    value: float
    unit: str
    boundary: str

    def _like(self, other: Amount) -> float:
        if not isinstance(other, Amount):
            raise RedblueError(f"{self.unit} at {self.boundary} can be compared with an Amount only, got {other!r}")
        for what, own, others in (("unit", self.unit, other.unit), ("boundary", self.boundary, other.boundary)):
            if own != others:
                raise RedblueError(
                    f"{self} and {other} cannot be compared: the {what} of one is {own}, of the other {others}; "
                    f"measure both at one boundary and in one unit"
                )
        return other.value

    def __truediv__(self, other: Amount) -> float:
        value = self._like(other)
        if not value:
            raise RedblueError(f"{self} over nothing ({other}) is no number")
        return self.value / value

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + self._like(other), self.unit, self.boundary)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.value - self._like(other), self.unit, self.boundary)

    def __lt__(self, other: Amount) -> bool:
        return self.value < self._like(other)

    def __le__(self, other: Amount) -> bool:
        return self.value <= self._like(other)

    def __gt__(self, other: Amount) -> bool:
        return self.value > self._like(other)

    def __ge__(self, other: Amount) -> bool:
        return self.value >= self._like(other)

    def __str__(self) -> str:
        return f"{self.value:,.0f} {self.unit} at {self.boundary}"


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    problem: as plain data; None where anybody's code was measured. kernel: what ran. schedule, tiles: what it follows.
    boundary: what lies on either side of it. capacity_bytes: what the fast side holds (None: not known).
    bytes_read, bytes_written: what crossed it towards the fast side, and back. bytes_per_word: of a word in `problem`.
    counted_words: by the schedule's closed form with these tiles; bound_words: what no schedule can beat in a fast
    memory of that capacity, for this problem. None where there is none.
    meter: its name; how: what it did; tool: program and version; date: local, ISO 8601.
    parts: what the bytes are made of, and what else the meter saw, each with its unit in its name.
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
        return Amount(self.measured_words, self.unit, self.boundary)

    @property
    def counted(self) -> Amount:
        """Raises RedblueError where nothing was counted."""
        return self._said("counted", self.counted_words)

    @property
    def bound(self) -> Amount:
        """Raises RedblueError where there is no bound."""
        return self._said("bound", self.bound_words)

    def _said(self, what: str, words: int | None) -> Amount:
        if words is None:
            raise RedblueError(f"nothing is {what} for {self.kernel}: give the problem that it solves, and a schedule")
        return Amount(words, self.unit, self.boundary)

    @property
    def over_counted(self) -> float | None:
        """Measured words over counted ones."""
        return self.measured / self.counted if self.counted_words else None

    @property
    def over_bound(self) -> float | None:
        return self.measured / self.bound if self.bound_words else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        said = {name: getattr(self, name) for name in ("measured_words", "over_counted", "over_bound")}
        return asdict(self) | said

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """What `to_dict` gave. Raises RedblueError, naming the fields that are missing."""
        missing = [each.name for each in fields(cls) if each.name not in data and each.name != "parts"]
        if missing:
            raise RedblueError(f"this is no measurement: it has no {', '.join(missing)}")
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise RedblueError(f"this is no measurement: it is not JSON ({error})") from error
        if not isinstance(data, dict):
            raise RedblueError(f"this is no measurement: it is {type(data).__name__}, not an object")
        return cls.from_dict(data)


def now() -> str:
    return datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
