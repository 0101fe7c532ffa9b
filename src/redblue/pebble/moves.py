"""Moves of a pebble game: a single Move, and a Game that holds millions of moves in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np

from redblue.base.errors import RedblueError
from redblue.pebble.whole_arrays import NotWhole, whole_array

LOAD, STORE, COMPUTE, DELETE = range(4)
KINDS = ("load", "store", "compute", "delete")


class Move(NamedTuple):
    """One move.

    kind: LOAD, STORE, COMPUTE or DELETE.
    node: the node whose pebble is placed or removed.
    parent: for COMPUTE with partial computation, the parent aggregated into the node; for COMPUTE with sliding, the
        parent whose red pebble slides to the node; otherwise -1.
    level: LOAD and STORE cross the boundary between levels `level` and `level` + 1; DELETE removes the pebble of
        `level`. Always 0 in games of two levels.
    """

    kind: int
    node: int
    parent: int = -1
    level: int = 0

    def __str__(self) -> str:
        text = f"{KINDS[self.kind] if 0 <= self.kind < len(KINDS) else self.kind} {self.node}"
        text += f" from {self.parent}" if self.parent >= 0 else ""
        return text + (f" at level {self.level}" if self.level else "")


@dataclass(frozen=True, eq=False)
class Game(Sequence[Move]):
    """The moves of a game, stored as one array per field of Move; indexing and iteration yield Move."""

    kinds: np.ndarray = field(repr=False)
    nodes: np.ndarray = field(repr=False)
    parents: np.ndarray = field(repr=False)
    levels: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, moves: Iterable[Sequence[int]]) -> Game:
        """Build a game from moves or tuples (kind, node[, parent[, level]]); a Game is returned unchanged.

        Raises RedblueError, with the number of the first move that is neither.
        """
        if isinstance(moves, Game):
            return moves
        rows = [_fields(number, move) for number, move in enumerate(moves)]
        return cls.from_arrays(*(zip(*rows, strict=True) if rows else [()] * 4))

    @classmethod
    def from_arrays(
        cls,
        kinds: Iterable[int] | np.ndarray,
        nodes: Iterable[int] | np.ndarray,
        parents: Iterable[int] | np.ndarray | None = None,
        levels: Iterable[int] | np.ndarray | None = None,
    ) -> Game:
        """Build a game from arrays or lists of one length. Defaults: parents are -1, levels are 0.

        Raises RedblueError, with the number of the first move that has an entry that is not a whole number or does not
        fit its array.
        """
        kind_array = _column("kind", kinds, np.int8)
        count = kind_array.size
        game = cls(
            kind_array,
            _column("node", nodes, np.int64),
            np.full(count, -1) if parents is None else _column("parent", parents, np.int64),
            np.zeros(count, np.int8) if levels is None else _column("level", levels, np.int8),
        )
        lengths = [array.shape for array in (game.kinds, game.nodes, game.parents, game.levels)]
        if set(lengths) != {(count,)}:
            raise RedblueError(f"a game's arrays must have one length, got the shapes {lengths}")
        return game

    def __len__(self) -> int:
        return self.kinds.size

    @overload
    def __getitem__(self, index: int) -> Move: ...
    @overload
    def __getitem__(self, index: slice) -> Game: ...
    def __getitem__(self, index: int | slice) -> Move | Game:
        if isinstance(index, slice):
            return Game(self.kinds[index], self.nodes[index], self.parents[index], self.levels[index])
        return Move(int(self.kinds[index]), int(self.nodes[index]), int(self.parents[index]), int(self.levels[index]))

    def __iter__(self) -> Iterator[Move]:
        columns = (array.tolist() for array in (self.kinds, self.nodes, self.parents, self.levels))
        return map(Move._make, zip(*columns, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Game):
            return NotImplemented
        pairs = zip(_arrays(self), _arrays(other), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Game({len(self):,} moves)"


def _arrays(game: Game) -> tuple[np.ndarray, ...]:
    return game.kinds, game.nodes, game.parents, game.levels


def _column(name: str, values: Iterable[int] | np.ndarray, dtype: type[np.signedinteger]) -> np.ndarray:
    """Convert one field of all moves to an array. Raises RedblueError, naming the field and the move."""
    try:
        return whole_array(values, dtype)
    except NotWhole as error:
        raise RedblueError(f"the {name} of move {error.number} {error}") from None


def _fields(number: int, move: Sequence[int]) -> tuple[int, ...]:
    """Return (kind, node, parent, level) of a move, with -1 and 0 for a parent and a level that are left out."""
    try:
        whole = tuple(x.__index__() for x in move)
    except (TypeError, AttributeError):
        whole = ()
    if not 2 <= len(whole) <= 4:
        raise RedblueError(f"move {number} must be whole numbers (kind, node[, parent[, level]]), got {move!r}")
    return whole + (-1, 0)[len(whole) - 2 :]
