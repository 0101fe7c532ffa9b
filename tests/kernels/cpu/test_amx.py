"""The row amx_bf16: its products on emulated tiles against float64, and the tile instructions in the object file.

`make test-amx` runs every kernel test on the emulated tiles.
"""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from redblue import Mask
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from support.attention import DTYPES, Case, running
from support.compiled import compiled
from support.tolerances import check_backward, check_forward

EMULATED = "amx_bf16_emulated"
OBJECTS = compiled("amx_bf16")


def runs(name):
    return any(row.name == name and row.supported for row in _core.list_isas())


emulates = pytest.mark.skipif(not runs("avx512_bf16"), reason="the other kernels of the row need avx512_bf16")


def example(heads, n_q, n_k, d, d_v, **options):
    rng = np.random.default_rng(0)
    shapes = ((heads, n_q, d), (heads, n_k, d), (heads, n_k, d_v), (heads, n_q, d_v))
    return Case(*(rng.standard_normal(shape).astype(DTYPES["bfloat16"]) for shape in shapes), options=options)


@emulates
@pytest.mark.parametrize(
    ("tile", "schedule"),
    [
        (None, "flash"),
        (cpu.Tile(48, 37), "auto"),
        (cpu.TwoPassTile(40, 33, 16, 65), "auto"),
        (None, "hybrid"),
        (None, "small_cache"),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (65, 67, 64, 32), (40, 130, 33, 17), (33, 50, 520, 40)], ids=str)
def test_both_passes_are_as_close_to_float64_as_the_unfused_expression(sizes, tile, schedule):
    case = example(2, *sizes, mask=Mask.causal(), schedule=schedule)
    case.tile = tile
    with running(_core.choose_isa(EMULATED)):
        check_forward(case)
        check_backward(case)


@emulates
def test_the_products_are_those_of_tiles():
    """Tiles round sums differently than avx512_bf16, so equal results would mean that no tile was used."""
    results = []
    for name in (EMULATED, "avx512_bf16"):
        with running(_core.choose_isa(name)):
            results.append(check_forward(example(1, 64, 64, 64, 64))[1])
    assert not np.array_equal(*results)


def test_emulation_runs_only_if_it_is_named(monkeypatch):
    monkeypatch.delenv("REDBLUE_ISA", raising=False)
    assert EMULATED not in [row.name for row in _core.list_isas()]
    assert _core.choose_isa().name != EMULATED


@emulates
def test_a_row_whose_products_are_wrong_says_so_once_and_is_not_chosen():
    script = f"""
from redblue.compiled import _core
for _ in range(2):
    try:
        _core.choose_isa("{EMULATED}")
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, REDBLUE_WRONG_TILES="1"),
    )
    assert done.stderr == (
        f"redblue: {EMULATED} is not used, because its products of known numbers are wrong on this machine\n"
    )
    assert done.stdout.count("an instruction set that this CPU lacks") == 2


def functions(path):
    """Return the instructions of each function of an object file: mangled name -> list of texts."""
    run = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
    bodies, lines = {}, []
    for line in run.stdout.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            lines = bodies.setdefault(head[1], [])
        elif instruction := re.match(r"\s+[0-9a-f]+:\t(.*)", line):
            lines.append(instruction[1])
    return bodies


@pytest.mark.skipif(not OBJECTS or not shutil.which("objdump"), reason="no object file of a build, or no objdump")
def test_products_are_tile_instructions_and_every_task_releases_the_tiles():
    path = max(OBJECTS, key=os.path.getmtime)
    by_name = functions(path)
    real = {name: "\n".join(code) for name, code in by_name.items() if "8amx_bf16" in name}
    (product,) = (code for name, code in real.items() if "product_of_tiles" in name)
    assert set(re.findall(r"tdpbf16ps %tmm(\d),%tmm(\d),%tmm(\d)", product)) == {
        ("6", "4", "0"),
        ("7", "4", "1"),
        ("6", "5", "2"),
        ("7", "5", "3"),
    }
    tasks = {name: code for name, code in real.items() if "5Tiled" in name}
    assert len(tasks) == 5
    for name, code in tasks.items():
        assert code.count("ldtilecfg") == 1, name
        assert code.count("tilerelease") == 2, name  # after the kernel, and if it throws
    emulated = "\n".join("\n".join(code) for name, code in by_name.items() if "amx_bf16_emulated" in name)
    assert emulated
    assert "tmm" not in emulated
