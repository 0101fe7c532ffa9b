"""Runs the scripts of benchmarks/ in the process of the tests."""

import contextlib
import importlib
import io
import sys
import warnings

import pytest


def run(script, *options):
    """Run a benchmark with these options in this process, which has the fast interpreter, and return its output."""
    module = importlib.import_module(f"benchmarks.{script}")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [script, *map(str, options)])
        warnings.simplefilter("ignore", RuntimeWarning)
        module.main()
    return printed.getvalue()
