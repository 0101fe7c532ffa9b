"""Compile a sample of the kernels of `make gpu-fit`, in processes where Triton does not interpret."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from redblue import RedblueError
from redblue.kernels.gpu.launch import alignment, array
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import plan
from redblue.kernels.sizes import Sizes
from support.examples import nightly, thorough

COMPILE_PLANS = Path(__file__).parents[4] / "benchmarks" / "gpu" / "fit.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "rows.json"
    subprocess.run([sys.executable, COMPILE_PLANS, "--spread", "--json", path], env=os.environ | {"COLUMNS": "200"})
    return json.loads(path.read_text())


@pytest.mark.thorough
@pytest.mark.nightly
def test_planned_kernels_fit_and_hardly_spill_registers(rows):
    assert len(rows) == 27  # forward and backward of 11 calls, and 5 calls on pages
    assert not [(row["card"], row["d"], row["dtype"], row["direction"], row["wrong"]) for row in rows if row["wrong"]]
    assert {"flash", "small_cache"} <= {row["kernel"] for row in rows}
    for row in rows:
        assert row["kernels"]
        assert max(kernel["shared_bytes"] for kernel in row["kernels"]) <= row["planned_shared_bytes"]
        assert row["planned_shared_bytes"] <= row["shared_bytes_of_card"]
        assert all(kernel["cubin_bytes"] > 1000 for kernel in row["kernels"])


SERIALIZED_WITH_DROPOUT = """
import torch
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch
from redblue.schedules.flash import BackwardTiles, ForwardTiles

sizes = Sizes((1,), 32, 1, 4096, 4096, 128, 128)
options = {"dropout": 0.1, "seed": torch.empty(1, dtype=torch.int64, device="meta")}
for direction, tiles in ("forward", ForwardTiles(128, 64)), ("backward", BackwardTiles(128, 32, 32, 128)):
    for each in fit.fits(direction, sizes, "bfloat16", Card(), Launch("flash", tiles, 8), **options):
        print(each.kernel, each.serialized)
"""


@pytest.mark.thorough
def test_wgmma_products_with_dropout_are_not_serialized():
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERIALIZED_WITH_DROPOUT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["flash_forward", "False", "flash_dq", "False", "flash_dkv", "False"]


FIT_OF_ONE_PLAN_OF_EACH_KIND = """
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import card_named
from redblue.kernels.gpu.planning.plan import node_sizes, plan

card, sizes = card_named("a100-sxm"), Sizes((1,), 32, 1, 4096, 4096, 64, 64)
launch = plan("forward", sizes, "float16", card)
(needed,) = fit.fits("forward", sizes, "float16", card, launch)
print(needed.kernel, needed.on(card), needed.shared_bytes <= launch.shared_bytes, needed.spilled_bytes <= 1024)

launch = plan("paged", node_sizes(16, 64, 64), "float16", card, schedule="flash")
for needed in fit.fits_of(fit.paged_runs(Sizes((2,), 8, 4, 0, 64, 64, 64), "float16", launch, 16), card.arch):
    print(needed.kernel, needed.on(card), needed.shared_bytes <= launch.shared_bytes, needed.spilled_bytes)
"""


@pytest.mark.thorough
def test_one_plan_of_each_kind_fits():
    """The thorough test_planned_kernels_fit_and_hardly_spill_registers compiles many plans."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    code = [sys.executable, "-c", FIT_OF_ONE_PLAN_OF_EACH_KIND]
    run = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "flash_forward True True True",
        "paged_forward True True 0",
        "paged_merge True True 0",
    ]


CANDIDATES_OF_HOPPER = """
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import candidates

for d in 64, 128:
    for direction in "forward", "backward":
        sizes = Sizes((1,), 32, 1, 8192, 8192, d, d)
        launches = candidates(direction, sizes, "bfloat16", Card(), schedule="flash")
        for launch in launches:
            if launch.kernel == "flash":
                for each in fit.fits(direction, sizes, "bfloat16", Card(), launch, end=1):
                    good = each.shared_bytes <= launch.shared_bytes and each.spilled_bytes <= 256
                    print("candidate", each.kernel, d, *launch.tiles, good and not each.serialized)
"""


@pytest.mark.thorough
@pytest.mark.nightly
def test_candidates_for_hopper_compile_as_planned():
    """They fit in the model's shared memory, spill little, and have no serialized products."""
    code = [sys.executable, "-W", "ignore", "-c", CANDIDATES_OF_HOPPER]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("candidate")]
    assert {line.split()[1] for line in lines} == {"flash_forward", "flash_dq", "flash_dkv"}
    assert not [line for line in lines if not line.endswith("True")]


LOADS_OF_ROWS_OF_40 = """
import re, sys
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import Launch
from redblue.schedules.flash import BackwardTiles, ForwardTiles

direction, sizes = sys.argv[1], Sizes((1,), 32, 1, 4096, 4096, 40, 40)
tiles = {"forward": ForwardTiles(128, 64), "backward": BackwardTiles(128, 32, 32, 128)}[direction]
for run in fit.runs(direction, sizes, "bfloat16", Launch("flash", tiles, 8, 3)):
    with fit._target(90):
        ptx = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings).asm["ptx"]
    ahead, short = re.search("cp.async.c[ag].shared", ptx), re.search(r"(ld|st).global.*b16", ptx)
    print(run.kernel.__name__, bool(ahead), bool(short))
"""


@pytest.mark.parametrize(
    ("direction", "kernels"), [thorough("forward", ["flash_forward"]), nightly("backward", ["flash_dq", "flash_dkv"])]
)
def test_rows_of_an_odd_multiple_of_8_numbers_are_copied_ahead(direction, kernels):
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    code = [sys.executable, "-W", "ignore", "-c", LOADS_OF_ROWS_OF_40, direction]
    run = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("flash_")]  # skips the assembler's lines
    assert lines == [f"{name} True False" for name in kernels]


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3, 5, 40), None, 8),
        ((2, 3, 5, 64), None, 16),
        ((2, 3, 5, 7), None, 1),
        ((2, 3, 5, 36), None, 4),
        ((2, 3, 5, 64), (1024, 0, 66, 1), 2),
        ((1, 1, 5, 64), (3, 7, 64, 1), 16),  # strides of dimensions of size 1 do not count
        ((0, 3, 1, 64), (3, 64, 7, 1), 16),
    ],
)
def test_the_alignment_of_strides(shape, strides, expected):
    x = torch.empty(shape)
    x = x if strides is None else torch.empty(10_000).as_strided(shape, strides)
    assert alignment({"x": array(x), "y": array(torch.empty(2, 2, 2, 64)), "n": 3, "none": None}) == expected


def test_kernels_that_do_not_fit_are_detected():
    resources = fit.Fit("kernel", 65536, 255, 0, 512, 10_000, False)
    assert resources.on(Card(shared_bytes=65536))
    assert not resources.on(Card(shared_bytes=65535))
    assert not resources._replace(tensor_memory_columns=513).on(Card())


def test_interpreted_kernels_are_not_compiled():
    sizes = Sizes((1,), 1, 1, 64, 64, 16, 16)
    with pytest.raises(RedblueError, match="unset TRITON_INTERPRET"):
        fit.fits("forward", sizes, "float16", Card(), plan("forward", sizes, "float16", Card()))
