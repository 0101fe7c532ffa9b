"""The script that `redblue.meter.cachegrind` runs under valgrind: one call of the compiled core.

Its argument is a JSON file with the task. The script imports neither redblue nor NumPy, because these imports take too
long under valgrind. It loads only the compiled module, places the arrays one after the other in newly allocated memory,
each at the start of a line, and makes the call.

The call runs in a thread. The main thread's stack starts after the environment and the command line, so its lines
depend on the length of a path; a thread's stack starts at a page.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import sys
import threading
from pathlib import Path
from typing import Any

ALIGNED = 64  # bytes: arrays start at the lines of common caches even if the simulated lines are shorter


def load(path: str) -> Any:
    """Load the compiled module from its file."""
    spec = importlib.util.spec_from_file_location("redblue.compiled._core", path)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


def lay(regions: list[dict[str, Any]], align: int) -> tuple[mmap.mmap, list[int]]:
    """Allocate memory for the regions; return it and the regions' addresses.

    A region is {"bytes": size}, filled with zeros, or its content is in the file that "file" names. align: alignment of
    the addresses.
    """
    starts, end = [], 0
    for region in regions:
        starts.append(end)
        end += -(-region["bytes"] // align) * align
    memory = mmap.mmap(-1, max(1, end))
    for start, region in zip(starts, regions, strict=True):
        if "file" in region:
            memory[start : start + region["bytes"]] = Path(region["file"]).read_bytes()
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return memory, [base + start for start in starts]


def placed(value: Any, addresses: list[int], core: Any) -> Any:
    """Arguments with {"region": i} replaced by its address, and structs of the core made; lists become tuples."""
    if isinstance(value, list):
        return tuple(placed(element, addresses, core) for element in value)
    if not isinstance(value, dict):
        return value
    if "region" in value:
        return addresses[value["region"]]
    fields = {name: placed(field, addresses, core) for name, field in value["fields"].items()}
    return getattr(core, value["struct"])(**fields)


def main(path: str) -> None:
    task = json.loads(Path(path).read_text())
    core = load(task["core"])
    if not core.under_valgrind():
        raise RuntimeError("the compiled module does not see valgrind")
    memory, addresses = lay(task["regions"], max(ALIGNED, task["line_bytes"]))
    outputs = [core.Output(addresses[i], task["regions"][i]["bytes"]) for i in task["outputs"]]
    arguments = placed(task["arguments"], addresses, core)
    if task["isa"]:
        arguments = (core.choose_isa(task["isa"]), *arguments)
    call = getattr(core, task["function"])
    core.meter_arm(outputs, task["line_bytes"])
    print(json.dumps(call(*arguments)))
    sys.stdout.flush()
    del memory


def run_in_thread(path: str) -> None:
    """Run `main` in a thread; exit with status 1 if it fails."""
    failed = True

    def run() -> None:
        nonlocal failed
        main(path)
        failed = False

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        sys.exit(1)  # the thread has printed why


if __name__ == "__main__":
    run_in_thread(sys.argv[1])
