"""Storage formats by name: `bits`, `blocks`, `tiles:64`, `csr`, `coo`, `2:4`."""

from __future__ import annotations

import re
from collections.abc import Callable

from redblue.base.errors import RedblueError, UnknownName
from redblue.masks.storage.formats import Bits, Coo, Csr, Format, NofM
from redblue.masks.storage.tile_lists import BitTiles, BlockList

NAMED: dict[str, Callable[[], Format]] = {
    "bits": Bits,
    "blocks": BlockList,
    "tiles": BitTiles,
    "csr": Csr,
    "coo": Coo,
}


def parse(format: str | Format) -> Format:
    """The format of that name. Raises RedblueError."""
    if not isinstance(format, str):
        return format
    if format in NAMED:
        return NAMED[format]()
    if found := re.fullmatch(r"tiles:(\d{1,9})", format, re.ASCII):
        return BitTiles(_positive(format, found[1]))
    if found := re.fullmatch(r"(\d{1,9}):(\d{1,9})", format, re.ASCII):
        n, m = _positive(format, found[1]), _positive(format, found[2])
        if n <= m:
            return NofM(n, m)
        raise RedblueError(f"format {format!r} keeps {n} of {m}: give at most as many as there are, such as 2:4")
    raise UnknownName("format", format, (*NAMED, "tiles:64", "2:4", "rule"), "N:M and tiles:E take numbers")


def _positive(format: str, text: str) -> int:
    if int(text) < 1:
        raise RedblueError(f"format {format!r} needs whole numbers of at least 1")
    return int(text)
