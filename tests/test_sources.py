"""The files as text: paths that they name exist, C++ keeps to 120 columns, tests mirror the package, data are small."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIDTH = 120  # as [tool.ruff] says
MAX_BYTES = 100_000  # of data and pictures
MAX_LINES = 60  # of a function of the C++ core
DATA = (".csv", ".json", ".jsonl", ".png", ".svg", ".txt")
TEXTS = (".py", ".pyi", ".h", ".cpp", ".md", ".toml", ".txt", ".jinja", ".css", ".js")
# A path with a folder, whose file has one of the project's suffixes.
PATH = re.compile(
    r"(?<![\w./~*<>{}$-])(?:[\w.-]+/)+[\w.-]+\.(?:py|pyi|h|cpp|md|toml|csv|svg|css|js|jinja)\b(?![\w/*{}])"
)
MODULE = re.compile(r"\b(?<!\bops\.)redblue(?:\.(?!__)[A-Za-z_]\w*)+")  # torch.ops.redblue has the operators of PyTorch
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
# The folders of tests/ that are not folders of src/redblue; CONTRIBUTING.md says what each is for.
BESIDE_THE_PACKAGE = {"benchmarks", "data", "examples", "hostile", "peers", "support"}


def tracked():
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / line for line in run.stdout.splitlines() if (ROOT / line).is_file()]


FILES = tracked()
SOURCES = [path for path in FILES if path.suffix in TEXTS and path != Path(__file__)]
needs_git = pytest.mark.skipif(not SOURCES, reason="the tree is not a git checkout")


def missing_paths(path, text):
    folders = [path.parent, path.parent.parent, *(ROOT / base for base in BASES)]
    named = set(PATH.findall(text)) - EXAMPLES
    return sorted(name for name in named if not any((folder / name).exists() for folder in folders))


def is_module_or_attribute(dotted):
    """Whether a name such as redblue.base.dtypes.DTYPE_CODES is a module, or a word in the text of its module."""
    place, parts = ROOT / "src" / "redblue", dotted.split(".")[1:]
    while parts and (place / parts[0]).is_dir():
        place, parts = place / parts[0], parts[1:]
    stub = place / f"{parts[0]}.pyi" if parts else place
    names = place / "__init__.pyi"  # of a package whose names are imported when they are used
    module = names if names.exists() else names.with_suffix(".py")
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
    assert is_module_or_attribute("redblue.base.dtypes.DTYPE_CODES")
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


def functions_of_cpp(text):
    """Yield the first line and the number of lines of the body of each function of a C++ file."""
    text = re.sub(r"//.*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)'", "", text)
    head, blocks, line = "", [], 1
    for character in text:
        line += character == "\n"
        if character == "{":
            container = re.search(r"\b(namespace|struct|class|enum|union|extern)\b[^()]*$|=\s*$", head)
            outer = all(start is None for start in blocks)
            blocks.append(line if outer and not container else None)
        elif character == "}" and blocks and (start := blocks.pop()):
            yield start, line - start + 1
        head = "" if character in "{};" else head + character


@needs_git
def test_functions_of_cpp_are_short():
    functions = [
        (path, *function)
        for path in SOURCES
        if path.suffix in (".h", ".cpp") and "tests" not in path.parts[-3:]
        for function in functions_of_cpp(path.read_text(encoding="utf-8"))
    ]
    assert len(functions) > 500
    assert [f"{path.name}:{line}: {count} lines" for path, line, count in functions if count > MAX_LINES] == []


def test_the_check_of_functions_counts_their_lines():
    text = (
        "namespace a {\nstruct B {\n  int f() const {\n    if (x) {\n    }\n  }\n};\nvoid g(int y,\n  int z) { }\n}\n"
    )
    assert list(functions_of_cpp(text)) == [(3, 4), (9, 1)]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def folders_of_tests(files):
    """Return the folders of tests/ that hold one of the files and should mirror the package, relative to tests/."""
    folders = {path.relative_to(ROOT / "tests").parent for path in files if ROOT / "tests" in path.parents}
    return {folder for folder in folders if folder.parts and folder.parts[0] not in BESIDE_THE_PACKAGE}


@needs_git
def test_folders_of_tests_are_folders_of_the_package():
    folders = folders_of_tests(SOURCES)
    assert len(folders) > 30
    assert not [str(folder) for folder in sorted(folders) if not (ROOT / "src" / "redblue" / folder).is_dir()]


@needs_git
def test_folders_of_the_package_have_tests():
    package = ROOT / "src" / "redblue"
    modules = [path for path in SOURCES if path.suffix == ".py" and path.name != "__init__.py"]
    folders = {path.relative_to(package).parent for path in modules if package in path.parents}
    tested = {folder for folder in folders_of_tests(SOURCES) for folder in (folder, *folder.parents)}
    assert len(folders) > 30
    assert not [str(folder) for folder in sorted(folders - tested)]


def test_contributing_explains_the_folders_of_tests_beside_the_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in BESIDE_THE_PACKAGE:
        assert (ROOT / "tests" / name).is_dir()
        assert f"`{name}/`" in text


def test_the_check_of_folders_sees_one_that_the_package_lacks():
    tests = ROOT / "tests"
    files = [tests / "test_a.py", tests / "support" / "a.py", tests / "op" / "nosuch" / "test_a.py"]
    assert folders_of_tests(files) == {Path("op/nosuch")}


def too_large(paths):
    return [
        f"{path.name}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,}. Round the numbers, draw fewer points, or "
        "keep it outside the repository with the command that makes it"
        for path in paths
        if path.suffix in DATA and path.stat().st_size > MAX_BYTES
    ]


def twins(paths):
    """The pictures of pixels that are also there as vectors."""
    return [str(path) for path in paths if path.suffix == ".png" and path.with_suffix(".svg") in paths]


@needs_git
def test_files_are_small_and_pictures_have_one_format():
    assert not too_large(FILES)
    assert not twins(FILES)


def test_the_checks_of_files_see_a_large_one_and_a_twin(tmp_path):
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_bytes(b"1" * MAX_BYTES)
    large.write_bytes(b"1" * (MAX_BYTES + 1))
    assert [text.split(".")[0] for text in too_large([small, large])] == ["large"]
    assert twins([Path("a.png"), Path("a.svg"), Path("b.png")]) == ["a.png"]
