"""`redblue --plugin FILE.py`: run a Python file that registers schedules, before the command runs."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from redblue.base.errors import RedblueError
from redblue.schedules import SCHEDULES


def load(path: Path) -> None:
    """Run the file as a module. Raises RedblueError if it is no Python file, fails, or registers no schedule."""
    file = path.expanduser().resolve()
    if file.suffix != ".py" or not file.is_file():
        raise RedblueError(f"--plugin takes a Python file that exists, such as own_schedule.py; got {path}")
    before = dict(SCHEDULES)
    try:
        _run(file)
    except RedblueError as error:
        raise RedblueError(f"{path}{_line(error, file)}: {error}") from error
    except SyntaxError as error:
        raise RedblueError(f"{path}{_line(error, file)}: SyntaxError: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise RedblueError(f"{path}{_line(error, file)}: {type(error).__name__}: {error}") from error
    if before == SCHEDULES:
        raise RedblueError(
            f"{path} registers no schedule: call redblue.register_schedule at its top level, outside of "
            'if __name__ == "__main__"'
        )


def _run(file: Path) -> None:
    """Execute the file. It may import modules beside it.

    The module does not stay in sys.modules: joblib then sends its functions to worker processes by value, since these
    processes could not import it.
    """
    name = f"redblue_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the decorator of dataclasses looks up their module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
        del sys.modules[name]


def _line(error: BaseException, file: Path) -> str:
    """Name the line of the file at which it failed, if it is known."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
