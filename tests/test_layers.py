"""The package's imports: no cycles, none of the package root, every module in a layer, a light `import redblue`."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import redblue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(redblue.__file__).parent
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
NOT_LOADED = {
    "torch",
    "triton",
    "transformers",
    "jax",
    "vllm",
    "altair",
    "joblib",
    "scipy",
    "dask",
    "vl_convert",
    "jinja2",
    "rich",
    "typer",
    "pyarrow",
}


@pytest.fixture(scope="module")
def graph():
    """Every import of one module of the package by another; deferred and TYPE_CHECKING imports included."""
    grimp = pytest.importorskip("grimp", reason="NOT CHECKED for cycles of imports: pip install import-linter")
    return grimp.build_graph("redblue", cache_dir=None)


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, the first one again at the end; [] if there are none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_find_cycle_finds_one():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def test_no_modules_import_each_other(graph):
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 500
    assert find_cycle(imports) == []


def test_deferred_imports_are_in_the_graph(graph):
    """redblue.lab.plans imports redblue.base.terminal inside a function."""
    assert "redblue.base.terminal" in graph.find_modules_directly_imported_by("redblue.lab.plans")


def test_type_checking_imports_are_in_the_graph(graph):
    """redblue.machine.hierarchy imports redblue.catalogue.memories for its annotations only."""
    assert "redblue.catalogue.memories" in graph.find_modules_directly_imported_by("redblue.machine.hierarchy")


def test_nothing_inside_imports_the_root(graph):
    assert "redblue.base.version" in graph.find_modules_directly_imported_by("redblue.meter.meters")
    assert graph.find_modules_that_directly_import("redblue") == set()


def test_nothing_inside_pebble_imports_its_public_names(graph):
    """The graph does not show the modules behind them, so such an import could hide a circle."""
    importers = graph.find_modules_that_directly_import("redblue.pebble")
    assert "redblue.lab.traces" in importers
    assert not [name for name in importers if name.startswith("redblue.pebble.")]


def test_kernels_of_gpus_and_of_the_cpu_do_not_import_each_other(graph):
    """Not even through other modules: planning for a GPU must not load the planner of the CPU."""
    for one, other in (("cpu", "gpu"), ("gpu", "cpu")):
        chains = graph.find_shortest_chains(f"redblue.kernels.{one}", f"redblue.kernels.{other}", as_packages=True)
        assert chains == set()


def top_level_modules() -> set[str]:
    """Return the names of the package's own modules and packages, as an import would find them."""
    files = {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    return files | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_top_level_module_has_its_layer():
    (contract,) = linter_settings()["contracts"]
    layered = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    assert len(layered) == len(set(layered))
    assert set(layered) == top_level_modules()


def test_the_layers_hold_for_every_import():
    """No setting exempts TYPE_CHECKING imports, single imports or modules. Deferred imports cannot be exempted."""
    assert find_exemptions(linter_settings()) == []


def test_find_exemptions_finds_each():
    settings = linter_settings()
    (contract,) = settings["contracts"]
    assert find_exemptions(settings | {"exclude_type_checking_imports": True}) == ["exclude_type_checking_imports"]
    assert find_exemptions(settings | {"contracts": [contract | {"ignore_imports": ["a -> b"]}]}) == ["ignore_imports"]
    assert find_exemptions(settings | {"contracts": [contract | {"type": "independence"}]}) == ["independence"]


def linter_settings() -> dict[str, Any]:
    """Return the table [tool.importlinter] of pyproject.toml."""
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]


def find_exemptions(settings: dict[str, Any]) -> list[str]:
    """Return the settings of import-linter that exempt imports from the layers; [] if every import must obey them."""
    (contract,) = settings["contracts"]
    general = settings.keys() - {"root_package", "contracts"}
    own = contract.keys() - {"name", "type", "containers", "exhaustive", "layers"}
    kind = {contract["type"]} - {"layers"}
    return sorted(general | own | kind)


# Every library that may be missing after `pip install redblue`, with the extra that brings it
OPTIONAL = {"torch": "torch", "triton": "gpu", "transformers": "transformers", "jax": "jax"}
OPTIONAL |= {"pyarrow": "parquet", "dask": "dask"}
HOSTS = {"vllm"}  # they load redblue as a plug-in; no extra installs them, because their builds differ by device


def test_every_imported_library_is_a_dependency():
    """The README's examples must work after a plain install, so only the libraries in OPTIONAL may be missing."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    required = {named(line) for line in project["dependencies"]}
    for library, extra in OPTIONAL.items():
        assert library in {named(line) for line in project["optional-dependencies"][extra]}
    imported = {name for path in PACKAGE.rglob("*.py") for name in run_time_imports(path)} - sys.stdlib_module_names
    assert {"numpy", "scipy", "torch"} <= imported
    assert imported - {"redblue", "numpy"} <= required | OPTIONAL.keys() | HOSTS


def named(requirement: str) -> str:
    """Return the name by which the library of a requirement, such as "vl-convert-python>=1.7", is imported."""
    name = re.split(r"[^A-Za-z0-9-]", requirement, maxsplit=1)[0].replace("-", "_")
    return name.removesuffix("_python")


def run_time_imports(path: Path) -> set[str]:
    """Return the top-level names that a file imports, deferred imports included, except for type checking."""
    names, waiting = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    for node in waiting:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
        waiting.extend(ast.iter_child_nodes(node))
    return names


# A fresh process ---------------------------------------------------------------------------------

# The modules that are loaded after `code`
LOADED = "import json, sys, redblue; {code}; print(json.dumps(sorted(sys.modules)))"
ALL_NAMES = "[getattr(x, name) for x in (redblue, redblue.pebble) for name in dir(x)]"
SECONDS = "import os; {code}; print(sum(os.times()[:2]))"
LABORATORY = {"redblue.lab", "redblue.pebble.bounds", "redblue.meter", "redblue.studies", "redblue.catalogue.models"}


def fresh(code: str, bytecode: Path) -> str:
    """Run code in a new Python that keeps its bytecode in `bytecode`. Returns the output of the code."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory):
    """A folder for bytecode that several fresh processes share."""
    return tmp_path_factory.mktemp("bytecode")


def test_no_public_name_loads_an_optional_or_heavy_library(bytecode):
    loaded = set(json.loads(fresh(LOADED.format(code=ALL_NAMES), bytecode)))
    assert {"redblue.op.api", "redblue.pebble.bounds", "numpy"} <= loaded
    assert loaded & NOT_LOADED == set()


def test_attention_does_not_load_the_laboratory(bytecode):
    loaded = set(json.loads(fresh(LOADED.format(code="redblue.attention"), bytecode)))
    assert "redblue.op.api" in loaded
    assert loaded & LABORATORY == set()


def test_every_public_name_is_found():
    """Names are imported when they are used, so a wrong name in __init__.pyi would show only then."""
    assert redblue.__version__
    for module in (redblue, redblue.pebble):
        assert len(module.__all__) > 40
        assert set(module.__all__) <= set(dir(module))
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_importing_attention_takes_less_than_300_ms(bytecode):
    """CPU time of the best of ten warm runs. A slow machine may take three times NumPy's import.

    The two imports alternate, because the speed of a shared machine can halve between two rows of five.
    """
    codes = [SECONDS.format(code=code) for code in ("import redblue; redblue.attention", "import numpy")]
    fresh(codes[0], bytecode)  # warm from here on
    pairs = ([float(fresh(code, bytecode)) for code in codes] for _ in range(10))
    assert any(ours < max(0.3, 3 * numpys) for ours, numpys in pairs)
