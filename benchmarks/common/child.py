"""Run one peer in a process of its own, which answers requests in lines of JSON.

Usage: PYTHON -m benchmarks.common.child MODULE PEER, with a Python that has PyTorch and the peer, but not redblue.
MODULE has `make(peer, call)`, which returns a function without arguments that runs the call, or raises Refused.
The process first prints the peer's version. Then it answers {"do": "load", "call": ..., "results": PATH} (it writes the
results of the call there), {"do": "time", "how": ..., "arguments": ...} with the result of that function of timing.py,
and {"do": "drop"}, which frees the inputs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common import timing
from benchmarks.common.failures import Refused, why
from benchmarks.common.other_process import LIBRARIES


class Server:
    """Holds one call of the peer at a time. make: builds a run of a call."""

    def __init__(self, make: Callable[[dict[str, Any]], Callable[[], Any]]) -> None:
        self.make = make
        self.run: Callable[[], Any] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "time":
            assert self.run is not None
            return {"result": getattr(timing, request["how"])(self.run, *request["arguments"])}
        self.run = None
        if request["do"] == "load":
            try:
                self.run = self.make(request["call"])
                torch.save(self.run(), request["results"])
            except Exception as failure:  # the peer is omitted, with its exception as the reason
                self.run = None
                return {"refused" if isinstance(failure, Refused) else "failed": why(failure)}
        return {}


def version(peer: str) -> str:
    """The version of the peer, and that of its PyTorch. Raises ImportError if the peer cannot be imported."""
    library = LIBRARIES[peer]
    importlib.import_module(library.module)
    try:
        own = metadata.version(library.package)
    except metadata.PackageNotFoundError:
        own = "of unknown version"
    return own if library.package == "torch" else f"{own} on torch {torch.__version__}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that output of libraries does not mix with the answers
    module, peer = sys.argv[1:]
    torch.set_num_threads(timing.THREADS)
    make = importlib.import_module(module).make
    server = Server(lambda call: make(peer, call))
    print(json.dumps({"version": version(peer)}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
