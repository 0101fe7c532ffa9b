"""The call that Python makes equals the structs that the core reads."""

import re
from pathlib import Path

import pytest

from redblue.base.dtypes import BYTES_PER_WORD, COMPUTED, DTYPE_CODES, sum_dtype
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu

HEADER = Path(__file__).parents[3] / "cpp" / "attention" / "array.h"


def test_number_types_have_the_codes_of_the_core():
    names = re.search(r"enum class Number {(.*?)}", HEADER.read_text(encoding="utf-8"))[1]
    codes = {name.strip().removeprefix("k").lower(): code for code, name in enumerate(names.split(","))}
    assert codes == DTYPE_CODES
    assert {*codes} == {*COMPUTED, "bool"}


@pytest.mark.parametrize("dtype", COMPUTED)
def test_the_core_knows_the_bytes_of_each_number_type(dtype):
    """A packed number has its array's type, or the sums' type if the instruction set cannot multiply that type."""
    allowed = {BYTES_PER_WORD[dtype], BYTES_PER_WORD[sum_dtype(dtype)]}
    assert {row.packed_bytes(DTYPE_CODES[dtype]) for row in _core.list_isas()} <= allowed


def test_the_arrays_of_a_pass():
    sizes = cpu.Sizes((2,), 3, 4, 5, 6, 7, 8)
    forward = cpu.array_forms(sizes, "bfloat16", "forward")
    assert forward["q"] == ((2, 12, 5, 7), "bfloat16")
    assert forward["v"] == ((2, 3, 6, 8), "bfloat16")
    assert forward["lse"] == ((2, 12, 5, 1), "float32")
    backward = cpu.array_forms(sizes, "float64", "backward")
    assert list(backward)[: len(forward)] == list(forward)
    assert {*cpu.WRITTEN["backward"]} <= {*backward}
    assert all(backward[f"d{name}"] == backward[name] for name in ("q", "k", "v", "out"))
    assert backward["delta"] == ((2, 12, 5, 1), "float64")
