"""The call that Python makes equals the structs that the core reads."""

import re
from pathlib import Path

import pytest

from redblue.base.dtypes import BYTES_PER_WORD, COMPUTED, DTYPE_CODES, sum_dtype
from redblue.compiled import _core

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
