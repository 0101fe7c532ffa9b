"""The script that `redblue.meter.measure_callable` runs under valgrind or ncu: one call of any Python function.

Its argument is a JSON file with the task. The function is called once before the measurement, so that imports,
compilation and first allocations are not counted. Under valgrind an empty function is measured as well, which gives
the traffic of a Python call itself.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

MISSING = (ImportError, AttributeError, KeyError, OSError)  # function_of raises these if there is no such function


def function_of(target: str) -> Any:
    """Find the function that "module:function" or "path/to/script.py:function" names. Raises one of MISSING."""
    module, _, name = target.rpartition(":")
    value = runpy.run_path(module) if module.endswith(".py") else vars(importlib.import_module(module))
    for part in name.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def missing_text(target: str, error: Exception) -> str:
    """Explain that function_of raised `error`."""
    return f"cannot find the function {target!r} ({type(error).__name__}: {error}): name one that can be imported"


def nothing(*args: Any, **kwargs: Any) -> None:
    """The empty function, whose call is measured for comparison."""


def measure_lines(task: dict[str, Any], call: Any) -> None:
    """Measure lines under callgrind: the lines of an empty call, and the lines of the call.

    After each call, reading as many other lines as the cache holds evicts the dirty lines, which are then counted as
    written.
    """
    # Not imported: importing redblue takes too long under valgrind.
    shared = runpy.run_path(str(Path(__file__).with_name("child.py")))
    core = shared["load"](task["core"])
    if not core.under_valgrind():
        sys.exit("the compiled module does not see valgrind")
    memory, (address,) = shared["lay"]([{"bytes": task["cache_bytes"]}], task["line_bytes"])
    for function in (nothing, call):
        core.meter_arm([core.Output(address, task["cache_bytes"])], task["line_bytes"])
        core.meter_start()
        function(*task["args"], **task["kwargs"])
        core.meter_stop()
    del memory


def measure_kernels(task: dict[str, Any], call: Any) -> None:
    """Let ncu measure the GPU kernels of one call."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call(*task["args"], **task["kwargs"])
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main(path: str) -> None:
    """Do the task that the JSON file describes."""
    task = json.loads(Path(path).read_text())
    sys.path[:] = task["path"]
    try:
        call = function_of(task["target"])
    except MISSING as error:
        sys.exit(missing_text(task["target"], error))
    call(*task["args"], **task["kwargs"])
    (measure_lines if "core" in task else measure_kernels)(task, call)


if __name__ == "__main__":
    main(sys.argv[1])
