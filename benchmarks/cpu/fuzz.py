"""Make random calls on arrays that border on protected pages: any access outside an array kills the process.

    make fuzz                                   # seven minutes of calls, after the property tests
    python -m benchmarks.cpu.fuzz --seconds 60 --seed 7
    python -m benchmarks.cpu.fuzz --call 7 1234     # one call again, by its seed and number

Every array, including the results, lies in its own pages: either it ends right before a protected page, or it begins
right after one. One call in four is on a paged cache, whose unused pages are protected. Calls run in worker processes.
If a worker dies, the script reports its last call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common.options import at_least, parser_of
from benchmarks.cpu.fuzz_paged import paged_call
from benchmarks.cpu.guarded import Guarded
from redblue.base.dtypes import COMPUTED, DTYPE_CODES, sum_dtype
from redblue.compiled import _core
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import mask_form
from redblue.kernels.sizes import Sizes
from redblue.masks import Mask


def listed(rng: np.random.Generator, sizes: Sizes, lanes: int, bias_gradient: bool) -> cpu.Attended:
    """A random mask, shared by all batch entries or one per entry, as runs of keys or as pairs."""
    shape = (sizes.lead[0], 1) if rng.random() < 0.3 else ()
    mask = Mask.from_dense(rng.random((*shape, sizes.n_q, sizes.n_k)) < rng.choice([0.01, 0.1, 0.6, 1.0]))
    if not bias_gradient and rng.random() < 0.5:
        return mask_form.in_pairs(mask, sizes)
    return mask_form.in_tiles(mask, sizes, lanes, bias_gradient)


def one_call(seed: int, number: int) -> str:
    """Make the call that the seed and number define. Returns its description."""
    rng = np.random.default_rng([seed, number])
    if rng.random() < 0.25:
        return paged_call(rng)

    def length() -> int:
        return int(rng.choice([rng.integers(0, 10), rng.integers(0, 140), rng.integers(0, 600)]))

    def width() -> int:
        return int(rng.choice([rng.integers(1, 10), rng.integers(1, 140), rng.integers(1, 400)]))

    rows = [row for row in _core.list_isas() if row.supported]
    row = rows[rng.integers(len(rows))]
    dtype = str(rng.choice(COMPUTED))
    sums = sum_dtype(dtype)
    lead, kv_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
    n_q, n_k, d, d_v, heads = length(), length(), width(), width(), kv_heads * group
    bias_dtype = str(rng.choice(["bool", "float32", "bfloat16", "float16", sums]))
    q_shape, k_shape = (lead, heads, n_q, d), (lead, kv_heads, n_k, d)
    v_shape, out_shape, sum_shape = (lead, kv_heads, n_k, d_v), (lead, heads, n_q, d_v), (lead, heads, n_q, 1)
    q, k, v, dout = (Guarded(rng, dtype, s, "broadcast") for s in (q_shape, k_shape, v_shape, out_shape))
    out, dq, dk, dv = (Guarded(rng, dtype, s) for s in (out_shape, q_shape, k_shape, v_shape))
    lse, delta, dlse = (Guarded(rng, sums, sum_shape, "plain") for _ in range(3))
    bias = Guarded(rng, bias_dtype, (lead, heads, n_q, n_k), "broadcast") if rng.random() < 0.5 else None
    dbias = Guarded(rng, sums, (lead, heads, n_q, n_k), "broadcast") if bias and rng.random() < 0.7 else None
    sinks = Guarded(rng, sums, (1, 1, 1, heads), "plain") if rng.random() < 0.3 else None
    first = -n_q if rng.random() < 0.5 else int(rng.integers(-n_q - 3, n_k + 4))
    end = n_k + 1 if rng.random() < 0.5 else first + int(rng.integers(1, n_q + n_k + 2))
    mask = cpu.Attended(first, end)
    sizes = Sizes((lead,), kv_heads, group, n_q, n_k, d, d_v)
    if rng.random() < 0.5:
        mask = listed(rng, sizes, row.lanes(DTYPE_CODES[dtype]), dbias is not None)
    tile = None
    if rng.random() < 0.6:
        tile = cpu.Tile(int(rng.integers(1, 200)), int(rng.integers(1, 200)), pieces=int(rng.integers(1, 6)))
        if rng.random() < 0.3:
            tile = cpu.TwoPassTile(*(int(edge) for edge in rng.integers(1, 200, 4)))
        elif rng.random() < 0.5:
            tile = cpu.SpillTile(bool(rng.random() < 0.5), *(int(edge) for edge in rng.integers(1, 200, 10)))
    options = {
        "mask": mask,
        "scale": float(rng.choice([0.3, -0.2, 0.0, 1.0])),
        "softcap": float(rng.choice([0.0, 0.0, 3.0])),
        "dropout": float(rng.choice([0.0, 0.0, 0.4])),
        "seed": int(rng.integers(2**63)),
        "threads": int(rng.integers(1, 4)),
        "bias": bias.described if bias else None,
        "bias_number": DTYPE_CODES[bias_dtype],
        "tile": tile,
        "row": row,
    }
    arrays = [x.described for x in (q, k, v, out, lse)]
    cpu.forward(sizes, dtype, *arrays, sinks=sinks.described if sinks else None, **options)
    more = [x.described for x in (dout, dq, dk, dv, delta)]
    gradients = {"dbias": dbias.described if dbias else None, "dlse": dlse.described if rng.random() < 0.5 else None}
    cpu.backward(sizes, dtype, *arrays, *more, **gradients, **options)
    return f"{row.name} {dtype} {sizes} {tile} {options} {arrays + more}"


def work(seed: int, first: int, step: int, seconds: float, progress: Path) -> None:
    """Make calls until time is up. The file `progress` always holds the number of the current call."""
    end, number, done = time.monotonic() + seconds, first, 0
    with progress.open("r+b", buffering=0) as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(json.dumps({"call": number, "done": done}).ljust(80).encode())
            one_call(seed, number)
            number, done = number + step, done + 1
        file.seek(0)
        file.write(json.dumps({"call": number, "done": done}).ljust(80).encode())


def fuzz(seed: int, seconds: float, workers: int, folder: Path) -> int:
    """Run the workers. Returns how many died."""
    deaths, running, begun = 0, [], time.monotonic()
    for worker in range(workers):
        progress = folder / f"worker{worker}"
        progress.write_text("{}")
        command = [
            sys.executable,
            "-m",
            "benchmarks.cpu.fuzz",
            "--work",
            str(seed),
            str(worker),
            str(workers),
            str(seconds),
            str(progress),
        ]
        running.append((subprocess.Popen(command, stderr=subprocess.PIPE, text=True), progress))
    while any(process.poll() is None for process, _ in running):
        time.sleep(1)
        if sys.stderr.isatty():
            done = sum(json.loads(progress.read_text() or "{}").get("done", 0) for _, progress in running)
            print(f"\r{time.monotonic() - begun:.0f} s, {done} calls", end="", file=sys.stderr)
    total = 0
    for process, progress in running:
        state = json.loads(progress.read_text())
        total += state.get("done", 0)
        if process.returncode:
            deaths += 1
            why = (
                f"signal {-process.returncode}" if process.returncode < 0 else (process.communicate()[1] or "").strip()
            )
            print(f"\nDIED ({why}) in: python -m benchmarks.cpu.fuzz --call {seed} {state.get('call', 0)}")
    print(f"\nseed {seed}: {total} calls in {time.monotonic() - begun:.0f} s, {deaths} deaths")
    return deaths


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="duration (default: 600)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the calls (default: from the clock)")
    parser.add_argument("--workers", type=at_least(1), default=2, help="processes (default: 2)")
    parser.add_argument("--call", type=int, nargs=2, metavar=("SEED", "NUMBER"), help="repeat one call")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        print(one_call(*options.call))
        return
    if options.work:
        seed, first, step, seconds, progress = options.work
        work(int(seed), int(first), int(step), float(seconds), Path(progress))
        return
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(1 if fuzz(seed, options.seconds, options.workers, Path(folder)) else 0)


if __name__ == "__main__":
    main()
