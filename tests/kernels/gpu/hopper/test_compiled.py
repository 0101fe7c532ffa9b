"""The Hopper kernel, compiled for sm_90 in processes where Triton does not interpret."""

import itertools
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon.nvidia.hopper")

from support.examples import nightly, thorough

COMPILE = """
import json, re, subprocess, sys, tempfile
from triton import knobs
from redblue.kernels.sizes import Sizes
from redblue.kernels.gpu.launch import PlanOptions
from redblue.kernels.gpu.planning import fit
from redblue.kernels.gpu.planning.card import Card
from redblue.kernels.gpu.planning.plan import plan
from redblue.schedules.flash import ForwardTiles

d, first, end = json.loads(sys.argv[1])
sizes = Sizes((1,), 32, 1, 4096, 4096, d, d)
mask = "full" if first is None and end is None else "band"
launch = plan("forward", sizes, "bfloat16", Card(), PlanOptions(by_gluon=mask))
(run,) = fit.runs("forward", sizes, "bfloat16", launch, first=first, end=end)
(needed,) = fit.fits_of([run], 90)
with fit._target(90):
    asm = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings).asm
    names = "HGMMA|WARPGROUP.DEPBAR.LE gsb0, 0x[01]|MUFU.EX2|USETMAXREG|UTMALDG|HMMA|LDL|STL"
# asm["sass"] of Triton 3.6 ends after 4096 instructions, before the code of the other consumers
with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(asm["cubin"])
    file.flush()
    listing = subprocess.check_output([knobs.nvidia.cuobjdump.path, "-sass", file.name], text=True)
sass = re.findall(names, listing)
print(json.dumps([needed._asdict(), launch.shared_bytes, sass]))
"""


def compiled(d, first, end):
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([d, first, end])],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert not run.returncode, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("d", "first", "end"),
    [nightly(64, None, None), thorough(128, -1000, 1), nightly(256, None, 1)],
)
def test_products_run_beside_exponentials(d, first, end):
    fit, planned_bytes, sass = compiled(d, first, end)
    assert fit["shared_bytes"] <= planned_bytes
    assert fit["spilled_bytes"] <= 512  # outside of loops: at most 12 bytes with Triton 3.6, 328 with 3.9
    assert not fit["serialized"]
    assert {"HGMMA", "USETMAXREG", "UTMALDG"} <= set(sass)
    assert "HMMA" not in sass
    # In each loop, exponentials of a tile come between a wait that leaves the output's product running and its own wait
    consumers, loops = (3 if d == 64 and end is None else 2), 1 + (end is not None) + (first is not None)
    tile = 64 * (64 if d == 256 else 128) // 128  # exponentials per thread
    beside = exponentials_beside_products(sass)
    assert sum(count >= tile for count in beside) == len(beside) == consumers * loops, beside


def exponentials_beside_products(sass):
    """The number of exponentials between each wait that leaves one product running and the next wait."""
    waits = [i for i, name in enumerate(sass) if name.startswith("WARPGROUP.DEPBAR")]
    return [sass[i:j].count("MUFU.EX2") for i, j in itertools.pairwise(waits) if sass[i].endswith("0x1")]


def test_exponentials_behind_the_second_wait_are_not_beside_products():
    one, none, exponential = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2"
    assert exponentials_beside_products([none, exponential, "HGMMA", one, exponential, none, exponential]) == [1]
    assert exponentials_beside_products([none, exponential, "HGMMA", one, none, exponential, "HGMMA", none]) == [0]
