"""Helpers in Triton and Gluon have few parameters: pointers, strides, accumulators and constants travel in tuples."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from redblue.kernels import gpu

SOURCES = sorted(Path(gpu.__file__).parent.rglob("*.py"))
MAX_PARAMETERS = 12
JIT = ("triton.jit", "gluon.jit")


def is_jitted(function: ast.FunctionDef) -> bool:
    """Whether the function is decorated with triton.jit or gluon.jit, with or without arguments."""
    decorators = (x.func if isinstance(x, ast.Call) else x for x in function.decorator_list)
    return any(ast.unparse(x) in JIT for x in decorators)


def helpers(sources: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The name and the number of parameters of each jitted function, except those launched by `Run(function, ...)`."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "Run"]
    kernels = {ast.unparse(call.args[0]) for call in calls}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and is_jitted(node) and node.name not in kernels:
            yield node.name, len(node.args.args) + len(node.args.kwonlyargs)


def test_launched_kernels_are_no_helpers():
    kernel = "@triton.jit(do_not_specialize=('x',))\ndef kernel(x, y, z): ..."
    helper = "@triton.jit\ndef helper(x, y: tl.constexpr): ..."
    in_gluon = "@gluon.jit\ndef in_gluon(x): ..."
    launch = "def launch(x):\n    return Run(kernel, (1,), {}, 4, 1)"
    assert list(helpers([f"{kernel}\n\n{helper}\n\n{in_gluon}", launch])) == [("helper", 2), ("in_gluon", 1)]


def test_helpers_have_at_most_12_parameters():
    counts = list(helpers(path.read_text(encoding="utf-8") for path in SOURCES))
    assert len(counts) > 40
    assert [entry for entry in counts if entry[1] > MAX_PARAMETERS] == []
