"""The names of storage formats: `bits`, `blocks`, `tiles:64`, `csr`, `coo`, `2:4`."""

from __future__ import annotations

import re
from collections.abc import Callable

from redblue.base.errors import RedblueError, UnknownName
from redblue.masks.storage.bits import Bits, NofM
from redblue.masks.storage.blocks import BitTiles, BlockList
from redblue.masks.storage.formats import Format
from redblue.masks.storage.sparse import Coo, Csr

FORMATS: dict[str, Callable[[], Format]] = {
    "bits": Bits,
    "blocks": BlockList,
    "tiles": BitTiles,
    "csr": Csr,
    "coo": Coo,
}


def parse(format: str | Format) -> Format:
    """Return the format of a name, or a format as it is. Raises RedblueError for an unknown name."""
    if not isinstance(format, str):
        return format
    if format in FORMATS:
        return FORMATS[format]()
    if match := re.fullmatch(r"tiles:(\d{1,9})", format, re.ASCII):
        return BitTiles(_positive(format, match[1]))
    if match := re.fullmatch(r"(\d{1,9}):(\d{1,9})", format, re.ASCII):
        n, m = _positive(format, match[1]), _positive(format, match[2])
        if n <= m:
            return NofM(n, m)
        raise RedblueError(f"format {format!r} keeps {n} of {m} columns: give n of at most m, such as 2:4")
    raise UnknownName(
        "format", format, (*FORMATS, "tiles:64", "2:4", "rule"), "N, M and E in N:M and tiles:E stand for numbers"
    )


def _positive(format: str, text: str) -> int:
    if int(text) < 1:
        raise RedblueError(f"the numbers of a format must be whole numbers of at least 1, got {format!r}")
    return int(text)
