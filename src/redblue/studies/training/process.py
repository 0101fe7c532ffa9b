"""One measurement in a separate process, so that its peak memory is its own and no thread of another contender runs.

`measure_alone` starts the process, which runs this file as a module. Its argument is the task as JSON, and its last
line of output is the result. The parent holds its standard input open; the process ends as soon as this input closes.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from redblue.base.errors import RedblueError

KILLED = "the system killed the process, most likely for lack of memory"


def measure_alone(module: str, point: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Call `run(point, folder)` of a module in a separate process; return its rows, with the peak memory.

    If the system kills the process, the result is one row with the reason under "skipped". Raises RedblueError if the
    process raises it, or if the process fails.
    """
    task = json.dumps({"module": module, "point": point, "folder": folder})
    command = [sys.executable, "-m", __name__, task]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            errors = list[bytes]()
            reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(process.stderr,))
            reader.start()
            output = process.stdout.read()
            reader.join()
            code = process.wait()
        finally:
            process.kill()
    if code == -signal.SIGKILL:
        return [point | {"skipped": KILLED}]
    if code:
        tail = errors[0].decode(errors="replace").strip().splitlines()[-3:]
        raise RedblueError(f"the measurement of {point} failed: {' '.join(tail) or f'exit status {code}'}")
    result = json.loads(output.splitlines()[-1])
    if "error" in result:
        raise RedblueError(result["error"])
    return result["rows"]


def peak_bytes() -> int:
    """The most memory that this process has held at once."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def _end_with_parent() -> None:
    """Wait for the end of the standard input, then end this process."""
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent acts on Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task = json.loads(sys.argv[1])
    try:
        rows = importlib.import_module(task["module"]).run(task["point"], Path(task["folder"]))
        result = {"rows": [row | {"peak_bytes": peak_bytes()} for row in rows]}
    except RedblueError as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
