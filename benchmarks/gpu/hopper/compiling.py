"""Compiles variants for sm_90 without a GPU."""

from __future__ import annotations

import contextlib
import io
import json
import re
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.gpu.hopper.calls import settings_of, tensors
from benchmarks.gpu.hopper.rows import MASKS, name


def compiled(row: dict[str, Any], uncached: bool = False) -> dict[str, Any]:
    """Compile the row's kernel without a GPU. Returns the assembler's report unless the kernel is in Triton's cache."""
    import torch
    from triton import knobs

    from redblue.kernels.gpu.hopper.forward import prepare
    from redblue.kernels.gpu.planning.fit import _target, standing_in

    q, k, v = tensors(row, "cpu")
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), torch.empty(q.shape[:3])
    launch = prepare(q, k, v, out, lse, 0.1, *MASKS[row["mask"]], settings_of(row))
    log = io.StringIO()
    launch.kernel.device_caches.clear()
    with contextlib.ExitStack() as stack:
        if uncached:
            stack.enter_context(_target(90))
        else:
            stack.enter_context(knobs.nvidia.scope())
            stack.enter_context(standing_in(90))
        stack.enter_context(contextlib.redirect_stdout(log))
        kernel = launch.kernel.warmup(*launch.positional, grid=launch.grid, **launch.settings)
    report = log.getvalue()
    return {
        "shared": kernel.metadata.shared,
        "registers": [int(x) for x in re.findall(r"Used (\d+) registers", report)],
        "spilled": [int(x) for x in re.findall(r"(\d+) bytes spill stores", report)],
        "serialized": sorted(set(re.findall(r"C75\d\d", report))),
        "hgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        "setmaxnreg": kernel.asm["ptx"].count("setmaxnreg"),
    }


def compile_all(chosen: list[dict[str, Any]]) -> int:
    """Compile the kernels of the rows, print their resources, and return the number that spill or are serialized."""
    bad = 0
    with ProcessPoolExecutor(1) as pool:
        futures = {pool.submit(compiled, row, True): row for row in chosen}
        for future in as_completed(futures):
            result = future.result()
            bad += bool(result["serialized"]) or max(result["spilled"], default=0) > 16 or not result["setmaxnreg"]
            print(name(futures[future]), json.dumps(result), flush=True)
    return bad
