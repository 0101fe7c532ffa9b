"""What runs under valgrind, or under ncu, for `redblue.meter.measure_callable`: one call of anybody's function.

A script, given a JSON file. The function is called once before it is measured, so that what it imports, compiles or
allocates at first is not counted. Under valgrind a call of nothing is measured, too: what Python itself moves.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def function_of(target: str) -> Any:
    """ "module:function", or "path/to/script.py:function"."""
    module, _, name = target.rpartition(":")
    found = runpy.run_path(module) if module.endswith(".py") else vars(importlib.import_module(module))
    for part in name.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def measure_lines(task: dict[str, Any], call: Any) -> None:
    """Between callgrind's marks; then as many other lines as the cache holds are read, which writes back all others."""
    shared = runpy.run_path(str(Path(__file__).with_name("child.py")))  # importing redblue would take valgrind long
    core = shared["load"](task["core"])
    if not core.under_valgrind():
        sys.exit("the compiled module does not see valgrind")
    memory, (address,) = shared["lay"]([{"bytes": task["cache_bytes"]}], task["line_bytes"])
    for each in (nothing, call):
        core.meter_arm([(address, task["cache_bytes"])], task["line_bytes"])
        core.meter_start()
        each(*task["args"], **task["kwargs"])
        core.meter_stop()
    del memory


def measure_kernels(task: dict[str, Any], call: Any) -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call(*task["args"], **task["kwargs"])
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main(path: str) -> None:
    task = json.loads(Path(path).read_text())
    sys.path[:] = task["path"]
    call = function_of(task["target"])
    call(*task["args"], **task["kwargs"])
    (measure_lines if "core" in task else measure_kernels)(task, call)


if __name__ == "__main__":
    main(sys.argv[1])
