"""Number types: their names, the bytes of one word of each, and their codes in the compiled core."""

from __future__ import annotations

from collections.abc import Sequence

from redblue.base.errors import RedblueError

BYTES_PER_WORD = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
ANY_DTYPE = " or ".join(", ".join(BYTES_PER_WORD).rsplit(", ", 1))  # all names as text, for help
COMPUTED = ("float64", "float32", "bfloat16", "float16")  # the types that kernels compute in
DEFAULT_DTYPE = "float16"  # of problems and models that name none
# Maps the bytes of a word to the last type of that size in the table. For 2 bytes, CPU kernels multiply this type.
DTYPE_OF_BYTES = {size: name for name, size in BYTES_PER_WORD.items()}
SUM_DTYPES = ("float32", "float64")  # the types in which kernels add
SIXTEEN_BITS = ("bfloat16", "float16")  # the types that the matrix instructions of GPUs multiply
# The codes of the types in the compiled core: enum Number in cpp/attention/array.h
DTYPE_CODES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3, "bool": 4}


def sum_dtype(dtype: str) -> str:
    """The type in which kernels add numbers of a type."""
    return "float64" if dtype == "float64" else "float32"


def dtype_name(dtype: object) -> str:
    """The name of a number type of NumPy or PyTorch."""
    return str(dtype).removeprefix("torch.")


def check_dtype(name: str, dtype: object, allowed: Sequence[str] = tuple(BYTES_PER_WORD)) -> None:
    """Raise RedblueError, which names the argument, unless the number type is one of `allowed`."""
    if not isinstance(dtype, str) or dtype not in allowed:
        raise RedblueError(f"{name} must be one of {', '.join(allowed)}, got {dtype!r}")
