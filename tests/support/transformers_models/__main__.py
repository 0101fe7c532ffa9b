"""The sweep over all model classes (`make transformers-table`). A stopped sweep continues where it ended."""

import argparse
import glob
import importlib
import inspect
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.transformers_models import table

MODULE_SECONDS, CLASS_SECONDS, BYTES = 900, 90, 8 << 30
NOT_COMPARED = ("eager fails", "not buildable")


def modules() -> list[str]:
    """The modeling modules whose attention goes through transformers' registry."""
    import transformers

    root = Path(transformers.__file__).parent
    paths = sorted(glob.glob(str(root / "models" / "*" / "modeling_*.py")))
    paths = [Path(path) for path in paths if "ALL_ATTENTION_FUNCTIONS" in Path(path).read_text(encoding="utf-8")]
    return [f"transformers.models.{path.parent.name}.{path.stem}" for path in paths]


def classes(module: str) -> list[type]:
    """The model classes with a forward pass that a module defines."""
    import torch
    from transformers.modeling_utils import PreTrainedModel

    imported = importlib.import_module(module)
    return [
        cls
        for name, cls in inspect.getmembers(imported, inspect.isclass)
        if issubclass(cls, PreTrainedModel)
        and cls.__module__ == module
        and not name.endswith(("PreTrainedModel", "PretrainedModel"))
        and cls.config_class is not None
        and cls.forward.__name__ != torch.nn.Module.forward.__name__
    ]


def _in_child(module: str, done: set[str], journal: Path) -> None:
    """Compare the classes of one module and append the outcomes to the journal.

    Classes that cannot be called alone are compared as parts of the module's other classes.
    """
    from support.transformers_models.compare import compare, compare_parts

    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    every = classes(module)
    outcomes = {cls: _limited(compare, cls) for cls in every if cls.__name__ not in done}
    for whole in every:
        alone = {cls for cls, outcome in outcomes.items() if outcome["status"] in NOT_COMPARED}
        if alone and whole not in alone:
            outcomes |= _limited(compare_parts, whole, alone)
    for cls, outcome in outcomes.items():
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"module": module, "class": cls.__name__, **outcome}) + "\n")


def _limited(run: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a comparison, which may take CLASS_SECONDS."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {CLASS_SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(CLASS_SECONDS)
    try:
        return run(*arguments)
    except BaseException as error:
        failure = {"status": "not buildable", "reason": f"{type(error).__name__}: {error}"[:160]}
        return failure if len(arguments) == 1 else {}
    finally:
        signal.alarm(0)


def sweep(journal: Path, only: list[str]) -> None:
    """Compare all classes that the journal lacks, one process per module."""
    import torch

    torch.set_num_threads(1)
    from transformers.utils import logging

    from redblue.integrations.transformers import mask_function, register

    mask_function.SMALL = 0  # tiny masks become rules, too
    warnings.simplefilter("ignore")
    logging.set_verbosity(logging.CRITICAL)
    register()
    records = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {record["class"] for record in records}
    every = [m for m in modules() if not only or any(f".{name}." in m for name in only)]
    for i, module in enumerate(every):
        child = os.fork()
        if child == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            if not only:
                os.dup2(null, 2)
            code = 1
            try:
                _in_child(module, done, journal)
                code = 0
            finally:
                os._exit(code)
        limit = time.monotonic() + MODULE_SECONDS
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.05)
            if time.monotonic() > limit:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
        print(f"\r{i + 1}/{len(every)} {module.split('.')[-2]:40}", end="", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--write", type=Path, help="folder of transformers.json and transformers.md")
    parser.add_argument("only", nargs="*", help="names of models; all if left out")
    arguments = parser.parse_args()
    os.nice(10)
    arguments.journal.parent.mkdir(parents=True, exist_ok=True)
    sweep(arguments.journal, arguments.only)
    if arguments.write:
        lines = arguments.journal.read_text(encoding="utf-8").splitlines()
        table.write(
            [json.loads(line) for line in lines], *(arguments.write / f"transformers.{x}" for x in ("json", "md"))
        )
