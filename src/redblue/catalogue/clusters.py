"""Clusters: several machines of the catalogue, and the link between them, written "8x h100-sxm over infiniband-ndr"."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from redblue.base.arguments import checked_arguments
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.integers import whole_number
from redblue.base.text import quoted
from redblue.catalogue.memories import Memory, memory
from redblue.catalogue.units import Place

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINKS = Path(__file__).with_name("links.toml")
CLUSTER = re.compile(r"\s*(\d+)\s*x\s+(.+?)\s+over\s+(\S+)\s*", re.ASCII)
FORM = 'a cluster is written as "8x h100-sxm over infiniband-ndr": processes, machine, link'
MAX_PROCESSES = 4096


@dataclass(frozen=True)
class Link:
    """A link between processes.

    bandwidth_bytes_per_second: the rate of one process in one direction. latency_seconds: the latency of one message.
    sources: the source of each figure, by its name.
    """

    name: str
    title: str
    bandwidth_bytes_per_second: float
    latency_seconds: float
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """`processes` processes, each on a machine `memory` of its own, joined by a link."""

    processes: int
    memory: Memory
    link: Link

    @property
    def name(self) -> str:
        return f"{self.processes}x {self.memory.name} over {self.link.name}"

    @property
    def title(self) -> str:
        return f"{self.processes} x {self.memory.title}, {self.link.title}"


def list_links() -> list[str]:
    """Return the names of the links in the catalogue."""
    return list(_links())


@checked_arguments
def link(name: str) -> Link:
    """Return the link of that name. Raises UnknownName."""
    if name not in _links():
        raise UnknownName("link", name, _links(), f"The links are {', '.join(_links())}")
    return _links()[name]


def is_cluster(text: object) -> bool:
    """Whether a text has the form of a cluster: a machine "over" a link."""
    return isinstance(text, str) and " over " in text


@checked_arguments
def cluster(text: str) -> Cluster:
    """Read a cluster such as "8x h100-sxm over infiniband-ndr".

    The machine is anything that `memory` takes by name. Raises RedblueError for another form, and UnknownName for an
    unknown machine or link.
    """
    match = CLUSTER.fullmatch(text) if len(text) < 1000 else None
    if match is None:
        raise RedblueError(f"{FORM}; got {quoted(text)}")
    processes, machine, joined = match.groups()
    return Cluster(whole_number("processes", int(processes), most=MAX_PROCESSES), memory(machine), link(joined))


@cache
def _links() -> dict[str, Link]:
    tables = tomllib.loads(LINKS.read_text(encoding="utf-8"))
    return {name: _link(Place(LINKS.name, name), table) for name, table in tables.items()}


def _link(place: Place, table: dict[str, Any]) -> Link:
    place.check_keys(table, "the link", ("title", "bandwidth", "latency"))
    figures = place.figures({key: table[key] for key in ("bandwidth", "latency")}, "the link", ("bandwidth", "latency"))
    return Link(
        place.table,
        table["title"],
        figures["bandwidth"].value,
        figures["latency"].value * 1e-9,
        {key: figure.source for key, figure in figures.items()},
    )
