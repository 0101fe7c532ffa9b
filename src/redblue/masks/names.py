"""Masks by name, as the command line takes them: patterns with their numbers, files, and & | ~ between them."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError
from redblue.masks.mask import Mask

MOST_DIGITS = 18  # of a number


class Name(NamedTuple):
    """A pattern's name. numbers: how many it takes, at least and at most; form: as the help says it."""

    make: Callable[..., Mask]
    least: int
    most: float
    form: str


EVER = float("inf")
NAMES = {
    "full": Name(Mask.full, 0, 0, "full"),
    "causal": Name(Mask.causal, 0, 0, "causal"),
    "causal-bottom-right": Name(lambda: Mask.causal(align="bottom-right"), 0, 0, "causal-bottom-right"),
    "window": Name(Mask.sliding_window, 1, 2, "window:LEFT[,RIGHT]"),
    "prefix": Name(Mask.prefix, 1, 1, "prefix:LENGTH"),
    "documents": Name(lambda *lengths: Mask.documents(lengths), 1, EVER, "documents:LENGTH,..."),
    "dilated": Name(Mask.dilated, 2, 2, "dilated:WINDOW,STEP"),
    "strided": Name(Mask.strided, 1, 1, "strided:STRIDE"),
    "global": Name(lambda *tokens: Mask.global_tokens(tokens), 1, EVER, "global:TOKEN,..."),
    "butterfly": Name(lambda *block: Mask.butterfly((block[0], block[-1])), 1, 2, "butterfly:BQ[,BK]"),
    "bigbird": Name(Mask.bigbird, 1, 5, "bigbird:BLOCK[,WINDOW[,FIRST[,RANDOM[,SEED]]]]"),
    "n_of_m": Name(Mask.n_of_m, 2, 2, "n_of_m:N,M"),
    "random": Name(lambda density, block, seed=0: Mask.random_blocks(density, seed, block), 2, 3,
                   "random:DENSITY,BLOCK[,SEED]"),
}  # fmt: skip
FILES = ("blocks:FILE.npy,BQ[,BK]", "dense:FILE.npy", "csr:FILE.npz")
FORMS = (*(name.form for name in NAMES.values()), *FILES)


def parse(text: str) -> Mask:
    """The mask of a text such as "causal & documents:512,1536". Raises RedblueError that lists the forms.

    ~ binds before &, & before |; parentheses may be used. A name of a file may hold such signs if the mask is it alone.
    """
    whole = text.strip()
    if not re.search(r"[&|~()]", whole) or re.match(r"(blocks|dense|csr):[^&|~()]*$", whole):
        return _one(whole, text)
    try:
        return _one(whole, text)
    except RedblueError:
        parts = [part.strip() for part in re.split(r"([&|~()])", whole)]
        parts = [part for part in parts if part]
        mask = _either(parts, text)
        if parts:
            raise _not_one(text) from None
        return mask


def _either(parts: list[str], text: str) -> Mask:
    mask = _both(parts, text)
    while parts and parts[0] == "|":
        parts.pop(0)
        mask = mask | _both(parts, text)
    return mask


def _both(parts: list[str], text: str) -> Mask:
    mask = _term(parts, text)
    while parts and parts[0] == "&":
        parts.pop(0)
        mask = mask & _term(parts, text)
    return mask


def _term(parts: list[str], text: str) -> Mask:
    if not parts:
        raise _not_one(text)
    part = parts.pop(0)
    if part == "~":
        return ~_term(parts, text)
    if part != "(":
        return _one(part, text)
    mask = _either(parts, text)
    if not parts or parts.pop(0) != ")":
        raise _not_one(text)
    return mask


def _one(part: str, text: str) -> Mask:
    """A single name with its numbers, or file."""
    kind, colon, given = part.partition(":")
    if kind in NAMES:
        name, numbers = NAMES[kind], [each.strip() for each in given.split(",")] if colon else []
        if any(len(number) > MOST_DIGITS for number in numbers):
            raise RedblueError(f"the numbers of a mask may have {MOST_DIGITS} digits, got {text[:40]}...")
        if name.least <= len(numbers) <= name.most and all(map(_is_number, numbers)):
            return name.make(*(float(number) if "." in number else int(number) for number in numbers))
    edge = rf"\d{{1,{MOST_DIGITS}}}"
    if found := re.fullmatch(rf"blocks:(.+?),({edge})(?:,({edge}))?", part):
        path, rows, cols = found.groups()
        return Mask.blocks(_array(path), (int(rows), int(cols or rows)))
    if kind == "dense" and given:
        return Mask.from_dense(_array(given))
    if kind == "csr" and given:
        return _csr(given)
    raise _not_one(text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", text) is not None


def _not_one(text: str) -> RedblueError:
    return RedblueError(
        f"mask must be {', '.join(FORMS)}, such as window:1024,0 or blocks:layout.npy,128, or several with & | ~ "
        f"between them; got {text[:200]!r}"
    )


def _array(path: str) -> np.ndarray:
    array = _load(path, "numpy.save")
    if isinstance(array, dict):
        raise RedblueError(f"{path!r} holds several arrays: give a .npy file, which numpy.save writes")
    return array


def _csr(path: str) -> Mask:
    """A graph from the arrays indptr, indices and shape of a file, as scipy.sparse.save_npz writes them."""
    arrays = _load(path, "scipy.sparse.save_npz")
    needed = ("indptr", "indices", "shape")
    if not isinstance(arrays, dict) or not set(needed) <= set(arrays):
        raise RedblueError(f"{path!r} must hold the arrays {', '.join(needed)}, which scipy.sparse.save_npz writes")
    indptr, indices, shape = (arrays[name] for name in needed)
    if shape.shape != (2,) or shape[0] != indptr.size - 1:
        raise RedblueError(f"shape in {path!r} must be (length of indptr - 1, n_k), got {shape.tolist()}")
    return Mask.from_csr(indptr, indices, shape[1])


def _load(path: str, writer: str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a .npy file, or those of a .npz file by name."""
    try:
        with open(path, "rb") as file:
            loaded: Any = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RedblueError(f"cannot read {path!r} as what {writer} wrote: {error}") from None
