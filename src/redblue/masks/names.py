"""Masks as text, for the command line: names with numbers, files, and the operators & | ~ between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from redblue.base.errors import RedblueError, UnknownName
from redblue.masks.mask import Mask

MAX_DIGITS = 18  # most digits of a number
NPY = b"\x93NUMPY"  # the first bytes of a .npy file
SHOWN = 200  # characters of the input that an error repeats


class Name(NamedTuple):
    """The constructor behind a name, the least and the greatest number of arguments, and the form shown in the help."""

    make: Callable[..., Mask]
    min_numbers: int
    max_numbers: float
    form: str


ANY_NUMBER = float("inf")
NAMES = {
    "full": Name(Mask.full, 0, 0, "full"),
    "causal": Name(Mask.causal, 0, 0, "causal"),
    "causal-bottom-right": Name(lambda: Mask.causal(align="bottom-right"), 0, 0, "causal-bottom-right"),
    "window": Name(Mask.sliding_window, 1, 2, "window:LEFT[,RIGHT]"),
    "prefix": Name(Mask.prefix, 1, 1, "prefix:LENGTH"),
    "documents": Name(lambda *lengths: Mask.documents(lengths), 1, ANY_NUMBER, "documents:LENGTH,..."),
    "dilated": Name(Mask.dilated, 2, 2, "dilated:WINDOW,STEP"),
    "strided": Name(Mask.strided, 1, 1, "strided:STRIDE"),
    "global": Name(lambda *tokens: Mask.global_tokens(tokens), 1, ANY_NUMBER, "global:TOKEN,..."),
    "butterfly": Name(lambda *block: Mask.butterfly((block[0], block[-1])), 1, 2, "butterfly:BQ[,BK]"),
    "bigbird": Name(Mask.bigbird, 1, 5, "bigbird:BLOCK[,WINDOW[,FIRST[,RANDOM[,SEED]]]]"),
    "n_of_m": Name(Mask.n_of_m, 2, 2, "n_of_m:N,M"),
    "random": Name(lambda density, block, seed=0: Mask.random_blocks(density, seed, block), 2, 3,
                   "random:DENSITY,BLOCK[,SEED]"),
}  # fmt: skip
FILES = ("blocks:FILE.npy,BQ[,BK]", "dense:FILE.npy", "csr:FILE.npz")
FILE_KINDS = ("blocks", "dense", "csr")
FORMS = (*(name.form for name in NAMES.values()), *FILES)
FORMS_TEXT = f"{', '.join(FORMS)}, such as window:1024,0 or blocks:layout.npy,128, or several with & | ~ between them"


def parse(text: str) -> Mask:
    """Make the mask of a text such as "causal & documents:512,1536".

    ~ binds more tightly than &, and & more tightly than |; parentheses group. A file's name may contain these
    characters only if the file is the whole text. Raises RedblueError, which lists the forms.
    """
    stripped = text.strip()
    if not re.search(r"[&|~()]", stripped):
        return _term(stripped, text)
    try:
        return _term(stripped, text)
    except RedblueError:
        return _composed([token for part in re.split(r"([&|~()])", stripped) if (token := part.strip())], text)


BINDS = {"|": 1, "&": 2, "~": 3}  # precedence of the operators; an open parenthesis has the lowest


def _composed(tokens: list[str], text: str) -> Mask:
    """Combine terms by operators. Two stacks replace recursion, because input may be nested arbitrarily deep.

    text: the whole input, for errors.
    """
    masks: list[Mask] = []
    waiting: list[str] = []  # operators and open parentheses whose masks are not complete
    needs_term = True  # whether a term, ~ or ( must come next

    def apply(least: int) -> None:
        """Apply the waiting operators of at least this precedence."""
        while waiting and BINDS.get(waiting[-1], 0) >= least:
            operator, mask = waiting.pop(), masks.pop()
            masks.append(~mask if operator == "~" else masks.pop() & mask if operator == "&" else masks.pop() | mask)

    for token in tokens:
        if needs_term != (token not in ("&", "|", ")")):
            raise _invalid(text)
        if token in ("~", "("):
            waiting.append(token)
        elif token in ("&", "|"):
            apply(BINDS[token])
            waiting.append(token)
            needs_term = True
        elif token == ")":
            apply(1)
            if not waiting:
                raise _invalid(text)
            waiting.pop()
        else:
            masks.append(_term(token, text))
            needs_term = False
    if needs_term:
        raise _invalid(text)
    apply(1)
    if waiting:
        raise _invalid(text)
    return masks[0]


def _term(term: str, text: str) -> Mask:
    """Make the mask of a name with its numbers, or of a file. text: the whole input, for errors."""
    kind, colon, arguments = term.partition(":")
    if kind in NAMES:
        name, numbers = NAMES[kind], [number.strip() for number in arguments.split(",")] if colon else []
        if any(len(number) > MAX_DIGITS for number in numbers):
            raise RedblueError(f"the numbers of a mask may have at most {MAX_DIGITS} digits, got {text[:40]}...")
        if name.min_numbers <= len(numbers) <= name.max_numbers and all(map(_is_number, numbers)):
            return name.make(*(float(number) if "." in number else int(number) for number in numbers))
    edge = rf"\d{{1,{MAX_DIGITS}}}"
    if match := re.fullmatch(rf"blocks:(.+?),({edge})(?:,({edge}))?", term):
        path, rows, cols = match.groups()
        return Mask.blocks(_array(path), (int(rows), int(cols or rows)))
    if kind == "dense" and arguments:
        return Mask.from_dense(_array(arguments))
    if kind == "csr" and arguments:
        return _csr(arguments)
    if kind and kind not in NAMES and kind not in FILE_KINDS:
        raise UnknownName("mask", kind[:SHOWN], [*NAMES, *FILE_KINDS], f"A mask must be {FORMS_TEXT}")
    raise _invalid(text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", text) is not None


def _invalid(text: str) -> RedblueError:
    return RedblueError(f"mask must be {FORMS_TEXT}; got {text[:SHOWN]!r}")


def _array(path: str) -> np.ndarray:
    """Read the array of a .npy file."""
    array = _load(path, "numpy.save")
    if isinstance(array, dict):
        raise RedblueError(f"{path!r} holds several arrays: give a .npy file, which numpy.save writes")
    return array


def _csr(path: str) -> Mask:
    """Read a graph from a .npz file with the arrays indptr, indices and shape, as scipy.sparse.save_npz writes it."""
    arrays = _load(path, "scipy.sparse.save_npz")
    names = ("indptr", "indices", "shape")
    if not isinstance(arrays, dict) or not set(names) <= set(arrays):
        raise RedblueError(f"{path!r} must hold the arrays {', '.join(names)}, which scipy.sparse.save_npz writes")
    stored_as = arrays["format"].item() if "format" in arrays and arrays["format"].ndim == 0 else "csr"
    if stored_as not in ("csr", b"csr"):  # indptr of a CSC matrix counts columns, so the mask would be transposed
        text = stored_as.decode("ascii", "replace") if isinstance(stored_as, bytes) else str(stored_as)
        raise RedblueError(
            f"{path!r} must hold a CSR matrix, but its format is {text[:SHOWN]!r}: save matrix.tocsr() instead"
        )
    indptr, indices, shape = (arrays[name] for name in names)
    if shape.shape != (2,) or shape[0] != indptr.size - 1:
        raise RedblueError(f"shape in {path!r} must be (length of indptr - 1, n_k), got {shape.tolist()}")
    return Mask.from_csr(indptr, indices, shape[1])


def _load(path: str, writer: str) -> np.ndarray | dict[str, np.ndarray]:
    """Read the array of a .npy file, or the arrays of a .npz file by name. writer: who writes such files."""
    try:
        with open(path, "rb") as file:
            if file.read(len(NPY)) == NPY:
                # A mapped file takes no memory, and a header that claims more than the file holds is refused.
                return np.lib.format.open_memmap(path, mode="r")
            file.seek(0)
            loaded: Any = np.load(file, allow_pickle=False)
            return dict(loaded)
    except Exception as error:  # NumPy raises exceptions of many types for damaged headers
        reason = str(error) or type(error).__name__
        raise RedblueError(f"cannot read {path[:SHOWN]!r} as a file that {writer} wrote: {reason[:SHOWN]}") from None
