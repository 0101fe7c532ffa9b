"""Runs a kernel's own source on a grid."""

import ast
import itertools
import math
from pathlib import Path

import torch

from support.gluon_model.block import Block
from support.gluon_model.memory import Int, Map, Pointer
from support.gluon_model.operations import operations_of


def kernel_source(kernel):
    """Return the source of a kernel's file, after the sources of the files of its folder that it imports.

    kernel: the file's path. All definitions share one namespace, so no name may be defined twice.
    """
    sources, names = [], []
    _add_source(Path(kernel), sources)
    for source in sources:
        for node in ast.parse(source).body:
            names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            names += [target.id for target in node.targets] if isinstance(node, ast.Assign) else []
    assert len(names) == len(set(names)), "two files of the kernel define the same name"
    return "\n".join(sources)


def _add_source(file, sources):
    """Add the sources of the files that `file` imports, then its own, each of them once."""
    source = file.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("redblue."):
            imported = file.parent / f"{node.module.split('.')[-1]}.py"
            assert f"{file.parent.name}.{imported.stem}" in node.module, "the kernel imports from another folder"
            _add_source(imported, sources)
    if source not in sources:
        sources.append(source)


def run_kernel(source, name, grid, arguments, seed=0):
    """Run kernel `name` of the source on a grid: a number of blocks, or one for each axis.

    arguments: tensors, TMA descriptors and numbers, by their names.
    """
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    tree.body.insert(0, ast.fix_missing_locations(future))
    code = compile(tree, name, "exec")
    grid = grid if isinstance(grid, tuple) else (grid,)
    # One block after another; if blocks share work dynamically, later blocks find that all work has begun
    for number, program in enumerate(itertools.product(*map(range, grid))):
        block = Block(program, grid, seed * math.prod(grid) + number)
        namespace = operations_of(block)
        exec(code, namespace)
        namespace[name](**{parameter: _argument(x) for parameter, x in arguments.items()})


def _argument(x):
    if hasattr(x, "block_shape"):
        return Map(x)
    if isinstance(x, torch.Tensor):
        return Pointer(torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,)))
    return Int(x) if isinstance(x, int) and not isinstance(x, bool) else x
