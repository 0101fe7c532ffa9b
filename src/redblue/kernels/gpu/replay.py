"""Replay the launches of an earlier call with other tensors.

The host needs longer to plan a call, to construct its launches and to bind their arguments than the GPU needs for a
small call. A replay only replaces addresses. So the earlier call must have done nothing besides its launches, and these
must depend only on the `forms` of the tensors and on facts that the caller compares. Triton's hooks and debug settings
that are set after the earlier call have no effect on a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redblue.kernels.gpu.launch import TMA_ALIGNED_BYTES, Run
from redblue.kernels.gpu.planning.device import in_use

KEPT = 256  # replays in the cache

Addresses = Sequence[int]  # of the call's tensors, then of its temporary memory
Make = Callable[[Addresses], Any]  # makes one argument of a launch


class _Step(NamedTuple):
    """One launch: `launch` is the compiled kernel with its grid; `makers` make the arguments with addresses."""

    launch: Callable[..., object]
    arguments: tuple[Any, ...]
    makers: tuple[tuple[int, Make], ...]


class Replay(NamedTuple):
    """Launches whose addresses are replaced.

    memory: the bytes of each temporary array. kept: the arrays that every replay reads.
    """

    steps: tuple[_Step, ...]
    memory: tuple[int, ...]
    kept: tuple[Tensor, ...]

    def run(self, tensors: Sequence[Tensor]) -> bool:
        """Launch everything. Returns False, without any launch, if the memory does not suffice.

        tensors: in the order of `recorded`, of the same forms.
        """
        try:
            temporary = [tensors[0].new_empty(size, dtype=torch.uint8) for size in self.memory]
        except torch.OutOfMemoryError:
            return False
        in_use(self.kept)
        addresses = [x.data_ptr() for x in (*tensors, *temporary)]
        for launch, arguments, makers in self.steps:
            filled = list(arguments)
            for i, make in makers:
                filled[i] = make(addresses)
            launch(*filled)
        return True


def forms(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """The properties of tensors that must be equal for a replay. Addresses matter relative to each other."""
    addresses = [x.data_ptr() for x in tensors]
    own = [
        (x.shape, x.stride(), x.dtype, address % TMA_ALIGNED_BYTES)
        for x, address in zip(tensors, addresses, strict=True)
    ]
    return *own, *map(addresses.index, addresses)


def recorded(runs: Iterable[tuple[Run, Any]], tensors: Sequence[Tensor], kept: Sequence[Tensor] = ()) -> Replay | None:
    """The replay of a call; None if it cannot be replayed.

    runs: the call's launches, and the compiled kernel that each launch returned; None: it did not run. tensors: the
    call's inputs and results. kept: arrays that every replay reads. All other tensors among the launches' arguments are
    temporary memory.
    """
    places = _Places(tensors, kept)
    steps = []
    try:
        for run, compiled in runs:
            if not all(run.grid):
                continue
            if not hasattr(compiled, "launch_metadata"):
                return None
            arguments, makers = run.positional, []
            for i, x in enumerate(arguments):
                make = places.maker(x)
                if make is not None:
                    makers.append((i, make))
                    arguments[i] = None
            steps.append(_Step(compiled[(*run.grid, 1, 1)[:3]], tuple(arguments), tuple(makers)))
    except _Unknown:
        return None
    return Replay(tuple(steps), tuple(places.memory), tuple(kept))


class _Unknown(Exception):
    """An argument has no known place."""


class _Places:
    """The places of addresses: the number of a tensor or of a temporary array, and a distance in bytes."""

    def __init__(self, tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        self.tensors, self.memory = tensors, list[int]()
        self.kept = {x.data_ptr() for x in kept if x.numel()}
        self.kept_storages = {x.untyped_storage().data_ptr() for x in kept if x.numel()}
        self.by_address = {x.data_ptr(): i for i, x in reversed(list(enumerate(tensors)))}
        self.by_storage: dict[int, int | None] = {}  # None: several tensors share this storage
        for i, x in enumerate(tensors):
            storage = x.untyped_storage().data_ptr()
            self.by_storage[storage] = None if storage in self.by_storage else i

    def maker(self, x: Any, inside: bool = False) -> Make | None:
        """The function that makes the argument; None if it is the same in every replay.

        inside: x is part of a tuple, so it is no temporary memory.
        """
        if isinstance(x, Tensor):
            if not x.numel() or x.data_ptr() in self.kept:
                return None
            number, distance = self.place(x, not inside)
            return lambda addresses: addresses[number] + distance
        if isinstance(x, tuple):
            return self.tuple_maker(x)
        base = getattr(x, "base", None)
        if isinstance(base, Tensor):  # x is a TMA descriptor
            number, distance = self.place(base, True)
            fields = {name: value for name, value in vars(x).items() if name != "base"}
            return partial(_described, type(x), fields, number, distance)
        return None

    def tuple_maker(self, x: tuple[Any, ...]) -> Make | None:
        kind: Any = type(x)
        if x and isinstance(x[0], Tensor) and not any(isinstance(y, (Tensor, tuple)) for y in x[1:]):
            if not x[0].numel():
                return None
            number, distance = self.place(x[0], True)  # an array and its strides
            strides = x[1:]
            return lambda addresses: kind(addresses[number] + distance, *strides)
        makers = [(i, make) for i, y in enumerate(x) if (make := self.maker(y, inside=True)) is not None]
        if not makers:
            return None
        made_anew = {i for i, _ in makers}
        fixed = [None if i in made_anew else y for i, y in enumerate(x)]  # so that no tensor of this call stays alive

        def made(addresses: Addresses) -> Any:
            fields = fixed.copy()
            for i, make in makers:
                fields[i] = make(addresses)
            return kind(*fields) if hasattr(kind, "_fields") else tuple(fields)

        return made

    def place(self, x: Tensor, may_be_temporary: bool) -> tuple[int, int]:
        address, storage = x.data_ptr(), x.untyped_storage()
        number = self.by_storage.get(storage.data_ptr(), -1)
        if storage.data_ptr() in self.kept_storages:
            raise _Unknown
        if address in self.by_address:
            same = self.by_address[address]
            # A part of one tensor may begin where another tensor of the same storage begins
            if number is None and x.numel() != self.tensors[same].numel():
                raise _Unknown
            return same, 0
        if number is None or not storage.nbytes():
            raise _Unknown
        if number < 0 and not may_be_temporary:
            raise _Unknown
        if number < 0:
            number = len(self.tensors) + len(self.memory)
            self.memory.append(storage.nbytes())
            self.by_storage[storage.data_ptr()] = number
        base = self.tensors[number].data_ptr() if number < len(self.tensors) else storage.data_ptr()
        return number, address - base


class _At:
    """An address in the form of a tensor, for TMA descriptors."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def _described(kind: type, fields: dict[str, Any], number: int, distance: int, addresses: Addresses) -> Any:
    """A TMA descriptor of this class, whose array has another address."""
    descriptor = object.__new__(kind)  # copy.copy takes eight times as long
    descriptor.__dict__.update(fields)
    descriptor.base = _At(addresses[number] + distance)
    return descriptor


# The cache -----------------------------------------------------------------------------------------------------------


_kept: dict[Hashable, Replay] = {}


def known(key: Hashable) -> Replay | None:
    """The replay kept for this key. The key has the tensors' forms, and all other facts on which launches depend."""
    return _kept.get(key)


def keep(key: Hashable, replay: Replay | None) -> None:
    if replay is None:
        return
    if len(_kept) >= KEPT:
        _kept.clear()
    _kept[key] = replay


def forget() -> None:
    """Drop all replays."""
    _kept.clear()
