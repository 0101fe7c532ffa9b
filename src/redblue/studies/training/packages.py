"""A real graph that every Debian machine has: its packages and their dependencies."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from redblue.base.errors import RedblueError

NAME_BYTES = 24  # first bytes of a package's name, which are its features
STATUS = Path("/var/lib/dpkg/status")
NEEDS = ("Depends", "Pre-Depends", "Recommends")
FIELDS = ("Package", "Section", *NEEDS)


class Package(NamedTuple):
    """A package: its name, Debian's section, and the names of the packages that it needs, alternatives included."""

    name: str
    section: str
    needs: frozenset[str]


class Graph(NamedTuple):
    """Packages in the order of their names, and the edges of each package in CSR form.

    A package has an edge to itself, to the packages that it needs and to the packages that need it. names: (nodes,
    NAME_BYTES), the bytes of each name, 0 beyond its end. sections: (nodes,) numbers of Debian's sections.
    """

    names: np.ndarray
    sections: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.names)


def listed() -> list[Package]:
    """All packages that apt knows, else the installed ones. Raises RedblueError if neither list exists."""
    if shutil.which("apt-cache"):
        with subprocess.Popen(
            ["apt-cache", "dumpavail"], stdout=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout
            available = packages(process.stdout)
        if process.returncode == 0 and available:
            return available
    try:
        with STATUS.open(encoding="utf-8", errors="replace") as lines:
            return packages(lines)
    except OSError:
        raise RedblueError("the graph of packages needs Debian or Ubuntu, with apt-cache or dpkg's status") from None


def packages(lines: Iterable[str]) -> list[Package]:
    """Read descriptions of packages, line by line: the whole text takes 100 MB."""
    parsed, fields = list[Package](), dict[str, str]()
    for line in chain(lines, ["\n"]):
        name, colon, value = line.partition(": ")
        if colon and name in FIELDS:
            fields[name] = value.strip()
        elif not line.strip():
            if "Package" in fields:
                section = fields.get("Section", "").rpartition("/")[2]
                parsed.append(Package(fields["Package"], section, frozenset(needed(fields))))
            fields = {}
    return parsed


def graph(listed: list[Package], most: int) -> Graph:
    """The graph of the `most` packages that are connected with the most other packages."""
    known = {package.name: package for package in listed}
    needs = {name: package.needs & known.keys() for name, package in known.items()}
    degree = dict.fromkeys(known, 0)
    for name, others in needs.items():
        degree[name] += len(others)
        for other in others:
            degree[other] += 1
    kept = sorted(sorted(known, key=lambda name: (-degree[name], name))[:most])
    number = {name: i for i, name in enumerate(kept)}
    pairs = {(i, i) for i in range(len(kept))}
    for name in kept:
        ends = [(number[name], number[other]) for other in needs[name] if other in number]
        pairs |= {pair for a, b in ends for pair in ((a, b), (b, a))}
    edges = np.array(sorted(pairs))
    indptr = np.searchsorted(edges[:, 0], np.arange(len(kept) + 1))
    names = np.zeros((len(kept), NAME_BYTES), np.int64)
    for i, name in enumerate(kept):
        symbols = name.encode()[:NAME_BYTES]
        names[i, : len(symbols)] = list(symbols)
    sections = [known[name].section for name in kept]
    return Graph(names, np.unique(sections, return_inverse=True)[1], indptr, edges[:, 1])


def digest(graph: Graph) -> str:
    """A digest of the graph."""
    parts = (graph.names, graph.sections, graph.indptr, graph.indices)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def needed(fields: dict[str, str]) -> set[str]:
    """The packages that a package's fields name, such as "libc6 (>= 2.36), perl | python3"."""
    text = ",".join(fields.get(field, "") for field in NEEDS)
    return {
        match.group()
        for alternative in re.split(r"[,|]", text)
        if (match := re.match(r"\s*([a-z0-9][a-z0-9+.-]+)", alternative))
    }
