"""Describe the memories of machines: the capacity, number and read bandwidth of each level.

`memory(name)` looks a machine up in redblue's own catalogue (memories.toml) or in a user's TOML file of the same form;
`this_machine()` describes the machine that runs this process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.dtypes import BYTES_PER_WORD
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.integers import whole_number
from redblue.catalogue import roofline
from redblue.catalogue.detect import CudaDevice, detect_cpu, detect_cuda
from redblue.catalogue.units import Place
from redblue.compiled import _core

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CATALOGUE = Path(__file__).with_name("memories.toml")
THIS_MACHINE = "this-machine"
KINDS = ("gpu", "accelerator", "cpu", "microcontroller")
TEXTS = ("title", "vendor", "architecture")
# Names of levels that hardware manages, with LRU replacement; software manages all other levels.
CACHE = re.compile(r"L\d|.*cache|SLC", re.IGNORECASE)
# Share of a hardware-managed cache that tiles may fill: the best single value measured (docs/results/real-caches.md).
USABLE_SHARE = 0.75
MAX_TILE_MULTIPLE = 65_536  # limit of a file's tile_multiple, far above the 16 of tensor cores
LEVEL_FIGURES = ("capacity", "count", "bandwidth", "line", "ways")
# Further properties: key in the file -> key in `Memory.facts`. Plans of GPU kernels use them, and the catalogue's tests
# compare other figures with them.
FACTS = {
    "shaders": "shaders",  # float32 lanes of the whole machine
    "lanes": "lanes_per_core",  # per core; a core is an SM or compute unit, counted by the fastest level
    "clock": "clock_hertz",  # boost
    "shared_memory": "shared_memory_bytes",  # per core, for all its thread blocks together
    "unified_l1": "unified_l1_bytes",  # per core: L1 cache and shared memory share it
    "registers": "registers_bytes",  # per core
    "tensor_memory": "tensor_memory_bytes",  # per core
    "compute_capability": "compute_capability",  # NVIDIA's, times ten: 86 for 8.6
}


@dataclass(frozen=True)
class Level:
    """One kind of memory in the machine."""

    name: str  # "registers", "L1d", "shared memory", "L2", "L3", "DRAM" ...
    capacity_bytes: int | None  # per instance (one SM's shared memory, one core's L1d); None: unknown or unbounded
    count: int = 1  # instances in the machine
    bandwidth_bytes_per_second: float | None = None  # reads by the next faster level, all instances; None: unknown
    line_bytes: int | None = None
    ways: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # figure ("capacity", "bandwidth" ...) -> "source, date"

    @property
    def usable_share(self) -> float:
        """Share of the capacity that tiles may fill: USABLE_SHARE of a hardware-managed cache, else all of it."""
        return USABLE_SHARE if CACHE.match(self.name) else 1.0


@dataclass(frozen=True)
class Boundary:
    """The boundary between a level and the next slower one, across which data moves."""

    fast: Level
    slow: Level

    @property
    def name(self) -> str:
        return f"{self.fast.name}/{self.slow.name}"

    @property
    def capacity_bytes(self) -> int | None:
        """Capacity of one instance of the fast level."""
        return self.fast.capacity_bytes

    @property
    def bandwidth_bytes_per_second(self) -> float | None:
        """Read bandwidth across the boundary, all instances together; None: unknown."""
        return self.slow.bandwidth_bytes_per_second


@dataclass(frozen=True)
class Memory:
    """A machine, as far as attention is concerned: its memories and its arithmetic rate."""

    name: str
    title: str
    kind: str  # one of KINDS; "accelerator": a TPU, Trainium or Gaudi, with software-managed fast memory
    levels: tuple[Level, ...]  # fastest first; the last one is the slow memory
    peak_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # by dtype: dense products, summed in fp32
    tile_multiple: int = 1  # preferred multiple of tile edges: 16 for tensor cores, 1 otherwise
    sources: Mapping[str, str] = field(default_factory=dict)  # figure ("peak.float16" ...) -> "source, date"
    devices: tuple[Memory, ...] = ()  # only for this_machine(): its CUDA devices
    device_names: tuple[str, ...] = ()  # names that a driver reports for this machine
    vendor: str = ""
    architecture: str = ""  # the catalogue's tests compare machines of one vendor and architecture
    facts: Mapping[str, float] = field(default_factory=dict)  # see FACTS; sources under "facts.shaders" ...

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Fast to slow: (levels[0], levels[1]), (levels[1], levels[2]) ..."""
        return tuple(Boundary(fast, slow) for fast, slow in pairwise(self.levels))


def list_memories() -> list[str]:
    """Return the names in the catalogue. (`memory` also accepts "this-machine" and a TOML file.)"""
    return list(_catalogue())


@checked_arguments
def memory(name: str | os.PathLike[str] | Memory) -> Memory:
    """Return the machine of that name: one of `list_memories()`, "this-machine", or a user's own TOML file.

    A file is given by its path, or as "path.toml:name" if it holds more than one machine; memories.toml beside this
    module shows the format. A Memory is returned unchanged. Raises UnknownName for an unknown name, and RedblueError
    for a file that is missing, is not TOML, or has the wrong format.
    """
    if isinstance(name, Memory):
        return name
    text = os.fspath(name)
    if text == THIS_MACHINE:
        return this_machine()
    match = re.fullmatch(r"(.+\.toml)(?::([^/\\]+))?", text)
    if not match:
        catalogue = _catalogue()
        if text not in catalogue:
            hint = "A file of your own must end in .toml"
            raise UnknownName("memory", text, [*catalogue, THIS_MACHINE], hint)
        return catalogue[text]
    file, machine = match.groups()
    machines = read_memories(Path(file))
    if machine:
        if machine not in machines:
            raise UnknownName("memory", machine, machines, f"These are the machines in {file}")
        return machines[machine]
    if len(machines) > 1:
        names = ", ".join(machines)
        raise RedblueError(
            f"{text} holds {len(machines)} machines ({names}); choose one: {text}:{next(iter(machines))}"
        )
    return next(iter(machines.values()))


@checked_arguments
def this_machine(remeasure: bool = False) -> Memory:
    """Describe the machine that runs this process, with its CUDA devices in `.devices`.

    The system reports the CPU's caches; rates are measured. The first call on a machine measures for about two seconds
    (see `roofline.roofline`); later calls read the result from the user's cache folder, unless `remeasure` is set.
    On a CPU, float16 arithmetic runs in fp32, so there is no float16 peak.
    Raises RedblueError if REDBLUE_ISA names an instruction set that is unknown or that this CPU lacks.
    """
    cpu, measured = detect_cpu(), roofline.roofline(remeasure)
    isa = _core.choose_isa(measured.isa)
    when = f"measured, {measured.date}"

    def bandwidth(name: str) -> tuple[float | None, dict[str, str]]:
        rates = measured.read_bandwidth_bytes_per_second.get(name)
        return (rates["all cores"], {"bandwidth": when}) if rates else (None, {})

    register_bytes = isa.vector_registers * isa.vector_bytes
    instruction_set = f"{isa.name}: {isa.vector_registers} registers of {isa.vector_bytes} bytes"
    levels = [Level("registers", register_bytes, cpu.cores, sources={"capacity": instruction_set})]
    for level in cpu.caches:
        rate, sources = bandwidth(level.name)
        sources["capacity"] = cpu.source
        levels.append(
            Level(level.name, level.capacity_bytes, level.count, rate, level.line_bytes, level.ways, sources=sources)
        )
    rate, sources = bandwidth("DRAM")
    levels.append(Level("DRAM", cpu.memory_bytes, 1, rate, sources={"capacity": cpu.source, **sources}))
    return Memory(
        name=THIS_MACHINE,
        title=f"{cpu.model}, {cpu.cores} core{'s' if cpu.cores > 1 else ''}, {isa.name}",
        kind="cpu",
        levels=tuple(levels),
        peak_flops_per_second={dtype: rates["all cores"] for dtype, rates in measured.peak_flops_per_second.items()},
        sources={f"peak.{dtype}": when for dtype in measured.peak_flops_per_second},
        devices=tuple(cuda_memory(device) for device in detect_cuda()),
    )


def cuda_memory(device: CudaDevice) -> Memory:
    """Describe a detected GPU: sizes from its driver; peaks and other missing values from the catalogue, if listed."""
    listed = next((listed for listed in _catalogue().values() if device.name in listed.device_names), None)
    driver = "CUDA driver"
    shared = Level(
        "shared memory",
        device.shared_memory_bytes,
        device.multiprocessors,
        sources={"capacity": driver, "count": driver},
    )
    l2 = Level("L2", device.l2_bytes, sources={"capacity": driver})
    rate, rate_source = device.memory_bandwidth_bytes_per_second, "CUDA driver: 2 x memory clock x bus width"
    if rate is None and listed:
        rate, rate_source = listed.levels[-1].bandwidth_bytes_per_second, f"as {listed.name}"
    sources = {"capacity": driver, **({"bandwidth": rate_source} if rate else {})}
    return Memory(
        name=re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-"),
        title=device.name,
        kind="gpu",
        levels=(shared, l2, Level("DRAM", device.memory_bytes, 1, rate, sources=sources)),
        peak_flops_per_second=listed.peak_flops_per_second if listed else {},
        tile_multiple=16 if int(device.compute_capability.split(".")[0]) >= 7 else 1,
        sources=listed.sources if listed else {},
        vendor="NVIDIA",
        architecture=listed.architecture if listed else "",
        facts=listed.facts if listed else {},
    )


@cache
def _catalogue() -> dict[str, Memory]:
    return read_memories(CATALOGUE)


def read_memories(path: Path) -> dict[str, Memory]:
    """Read all machines of a TOML file, by name. Raises RedblueError that names the file, table and key at fault."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RedblueError(f"cannot read {path}: {error.strerror or error}; give the path of a TOML file") from error
    except RecursionError:
        raise RedblueError(f"{path} is not TOML that describes machines: it is nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, a number of too many digits, or a name that no file can have
        raise RedblueError(f"{path} is not TOML: {error}") from error
    if not tables:
        raise RedblueError(f"{path} holds no machine; write one table per machine, such as [my-board]")
    return {name: _machine(Place(path.name, name), table) for name, table in tables.items()}


def _machine(place: Place, table: Any) -> Memory:
    """Check and convert the table of one machine."""
    place.check_keys(table, "the machine", (*TEXTS, "kind", "tile_multiple", "device_names", "peak", "facts", "levels"))
    kind, multiple = table.get("kind"), table.get("tile_multiple", 1)
    if kind not in KINDS:
        raise place.error(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        whole_number("tile_multiple", multiple, most=MAX_TILE_MULTIPLE)
    except RedblueError as error:
        raise place.error(str(error)) from None
    texts, names = {key: table.get(key, "") for key in TEXTS}, table.get("device_names", [])
    if not isinstance(names, list) or not all(isinstance(text, str) for text in (*texts.values(), *names)):
        raise place.error(f"{', '.join(TEXTS)} must be texts, and device_names must be a list of texts")
    peaks = place.figures(table.get("peak", {}), "peak", tuple(BYTES_PER_WORD))
    facts = place.figures(table.get("facts", {}), "facts", tuple(FACTS))
    sources = {
        f"{where}.{key}": figure.source
        for where, figures in (("peak", peaks), ("facts", facts))
        for key, figure in figures.items()
    }
    levels = table.get("levels")
    if not isinstance(levels, list) or len(levels) < 2:
        raise place.error(
            f"levels must hold at least a fast and a slow memory: write one [[{place.table}.levels]] for each"
        )
    memories = tuple(_level(place, level, last=number == len(levels)) for number, level in enumerate(levels, 1))
    _check_order(place, memories)
    return Memory(
        name=place.table,
        title=texts["title"] or place.table,
        kind=kind,
        levels=memories,
        peak_flops_per_second={dtype: figure.value for dtype, figure in peaks.items()},
        tile_multiple=multiple,
        sources={key: source for key, source in sources.items() if source},
        device_names=tuple(names),
        vendor=texts["vendor"],
        architecture=texts["architecture"],
        facts={FACTS[key]: figure.value for key, figure in facts.items()},
    )


def _level(place: Place, table: Any, last: bool) -> Level:
    """Check and convert the table of one level. last: the level is the machine's slow memory."""
    name = table.get("name") if isinstance(table, dict) else None
    if not isinstance(name, str) or not name:
        raise place.error('every level needs a name, such as name = "L2"')
    where = f"level '{name}'"
    place.check_keys(table, where, ("name", *LEVEL_FIGURES))
    figures = place.figures({key: table[key] for key in table if key != "name"}, where, LEVEL_FIGURES)
    if "capacity" not in figures and not last:
        raise place.error(
            f"{where} needs a capacity: write capacity = {{ kib = ... }}; only the last level may lack one"
        )
    for key in ("count", "line", "ways"):
        if key in figures and figures[key].value % 1:
            raise place.error(f"{key} of {where} must be a whole number, got {figures[key].value:g}")
    whole = {key: round(figure.value) for key, figure in figures.items() if key != "bandwidth"}
    return Level(
        name=name,
        capacity_bytes=whole.get("capacity"),
        count=whole.get("count", 1),
        bandwidth_bytes_per_second=figures["bandwidth"].value if "bandwidth" in figures else None,
        line_bytes=whole.get("line"),
        ways=whole.get("ways"),
        sources={key: figure.source for key, figure in figures.items() if figure.source},
    )


def _check_order(place: Place, levels: tuple[Level, ...]) -> None:
    """Refuse levels whose instances do not grow in capacity, or grow in number, from fast to slow.

    The total capacity of a level may be smaller than that of the faster one (V100: 80 x 96 KiB above 6 MiB).
    """
    for fast, slow in pairwise(levels):
        if slow.capacity_bytes is not None and (fast.capacity_bytes or 0) >= slow.capacity_bytes:
            raise place.error(
                f"levels must go from fast and small to slow and large, but one '{fast.name}' "
                f"({fast.capacity_bytes} bytes) is no smaller than one '{slow.name}' ({slow.capacity_bytes} bytes)"
            )
        if slow.count > fast.count:
            raise place.error(f"there may not be more '{slow.name}' ({slow.count}) than '{fast.name}' ({fast.count})")
