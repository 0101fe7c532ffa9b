"""The sources as text: named paths and modules exist, and C++ lines are as short as Python's."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIDTH = 120  # as [tool.ruff] says
TEXTS = (".py", ".pyi", ".h", ".cpp", ".md", ".toml", ".txt", ".jinja", ".css", ".js")
# A path with a folder, whose file has one of the project's suffixes.
PATH = re.compile(
    r"(?<![\w./~*<>{}$-])(?:[\w.-]+/)+[\w.-]+\.(?:py|pyi|h|cpp|md|toml|csv|svg|css|js|jinja)\b(?![\w/*{}])"
)
MODULE = re.compile(r"\bredblue(?:\.(?!__)[A-Za-z_]\w*)+")
# Folders to which paths may be relative, besides the file's own folder and its parent.
BASES = ("", "src", "src/redblue", "cpp", "docs", "docs/lab", "tests", "benchmarks")
OTHERS = (
    "memories.toml",
    "models.toml",
    "test_site.py",
    "pages.py",
)  # name files of other projects, or pages of the site
EXAMPLES = {"path/to/script.py", "no/r.csv", "docs/results/gpu.svg"}  # of users, or not yet written
EXAMPLES |= {"xla/ffi/api/c_api.h"}  # in jaxlib


def tracked():
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / line for line in run.stdout.splitlines() if (ROOT / line).is_file()]


SOURCES = [path for path in tracked() if path.suffix in TEXTS and path != Path(__file__)]
needs_git = pytest.mark.skipif(not SOURCES, reason="the tree is not a git checkout")


def missing_paths(path, text):
    folders = [path.parent, path.parent.parent, *(ROOT / base for base in BASES)]
    named = set(PATH.findall(text)) - EXAMPLES
    return sorted(name for name in named if not any((folder / name).exists() for folder in folders))


def is_module_or_attribute(dotted):
    """Whether a name such as redblue.kernels.cpu.call.NUMBERS is a module, or a word in the text of its module."""
    place, parts = ROOT / "src" / "redblue", dotted.split(".")[1:]
    while parts and (place / parts[0]).is_dir():
        place, parts = place / parts[0], parts[1:]
    stub = place / f"{parts[0]}.pyi" if parts else place
    module = place / "__init__.py"
    if parts and ((place / f"{parts[0]}.py").exists() or stub.exists()):
        module, parts = stub if stub.exists() else stub.with_suffix(".py"), parts[1:]
    return not parts or re.search(rf"\b{parts[0]}\b", module.read_text(encoding="utf-8")) is not None


@needs_git
def test_paths_in_the_sources_exist():
    assert len(SOURCES) > 300
    checked = [path for path in SOURCES if path.name not in OTHERS]
    missing = {path: missing_paths(path, path.read_text(encoding="utf-8")) for path in checked}
    assert not {str(path.relative_to(ROOT)): names for path, names in missing.items() if names}


def test_the_check_of_paths_sees_a_stale_one():
    assert missing_paths(ROOT / "README.md", "see `cpp/attention/nosuch.h` and cpp/attention/call.h") == [
        "cpp/attention/nosuch.h"
    ]


@needs_git
def test_modules_in_the_sources_exist():
    stale = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.name != "CHANGELOG.md"  # it names former modules
        for name in MODULE.findall(path.read_text(encoding="utf-8"))
        if not is_module_or_attribute(name)
    }
    assert not stale


def test_the_check_of_modules_sees_a_stale_one():
    assert is_module_or_attribute("redblue.kernels.cpu.call.NUMBERS")
    assert is_module_or_attribute("redblue.compiled._core.Isa")
    assert not is_module_or_attribute("redblue.kernels.cpu.call.NOSUCH")
    assert not is_module_or_attribute("redblue.kernels.nosuch")


@needs_git
def test_lines_of_cpp_are_not_too_long():
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if path.suffix in (".h", ".cpp")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > WIDTH
    ]
    assert not long
