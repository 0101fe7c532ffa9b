"""The contents and metadata of the sdist. `make wheel` builds and tests the wheels themselves."""

import re
import subprocess
import sys
import tarfile
from email import message_from_string
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TOP = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cpp", "pyproject.toml", "src"}
SUFFIXES = {
    ".py",
    ".pyi",
    ".typed",
    ".toml",
    ".csv",
    ".css",
    ".js",
    ".jinja",
    ".html",
    ".svg",
    ".h",
    ".cpp",
    ".md",
    ".txt",
    "",
}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The files of the sdist: path -> (bytes, text of PKG-INFO alone)."""
    pytest.importorskip("scikit_build_core")
    out = tmp_path_factory.mktemp("sdist")
    build = f"import scikit_build_core.build as b; b.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    (archive,) = out.glob("redblue-*.tar.gz")
    assert archive.stat().st_size < 1_000_000
    with tarfile.open(archive) as opened:
        members = {member.name.partition("/")[2]: member for member in opened.getmembers() if member.isfile()}
        info = opened.extractfile(members["PKG-INFO"]).read().decode()
    return {path: member.size for path, member in members.items()}, info


def test_the_sdist_holds_what_builds_and_nothing_else(sdist):
    files, _ = sdist
    assert {path.partition("/")[0] for path in files} == TOP
    assert {Path(path).suffix for path in files} <= SUFFIXES
    assert max(files.values()) < 150_000
    assert not [path for path in files if path.startswith("cpp/tests")]


def test_the_sdist_holds_every_source(sdist):
    """Every file under version control of src and cpp, C++ tests apart."""
    listed = subprocess.run(["git", "ls-files", "src", "cpp"], cwd=ROOT, capture_output=True, text=True)
    tracked = {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}
    if listed.returncode or not tracked:
        pytest.skip("the sources are not under version control here")
    assert {path for path in tracked if not path.startswith("cpp/tests/")} <= set(sdist[0])
    assert {"src/redblue/py.typed", "src/redblue/catalogue/memories.toml", "src/redblue/bounds/phases.csv"} <= tracked


def test_metadata(sdist):
    info = message_from_string(sdist[1])
    assert info["Name"] == "redblue"
    assert info["License-Expression"] == "Apache-2.0"
    assert info.get_all("License-File") == ["LICENSE"]
    assert info["Requires-Python"] == ">=3.10"
    assert info["Description-Content-Type"] == "text/markdown"
    assert info["Version"] == metadata("redblue")["Version"]


def test_users_need_no_framework(sdist):
    """Only extras bring PyTorch, JAX, transformers and what builds redblue."""
    needs = [Requirement(text) for text in message_from_string(sdist[1]).get_all("Requires-Dist")]
    always = {need.name for need in needs if need.marker is None or "extra" not in str(need.marker)}
    assert "numpy" in always
    assert not always & {"torch", "triton", "jax", "transformers", "cmake", "nanobind", "pytest"}


def test_extras_are_documented(sdist):
    """The guide lists every extra, and every extra that the sources mention exists."""
    extras = set(message_from_string(sdist[1]).get_all("Provides-Extra")) - {"dev"}
    guide = (ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", guide, flags=re.MULTILINE)) == extras
    mentioned = set()
    for source in (ROOT / "src").rglob("*.py"):
        mentioned.update(re.findall(r"redblue\[(\w+)\]", source.read_text(encoding="utf-8")))
    assert {"torch", "gpu"} <= mentioned <= extras


def test_the_core_is_built_for_every_cpu():
    """Flags that tune to the machine of the build, or that give up IEEE arithmetic, stand nowhere in the build."""
    flags = re.compile(r"-march|-mtune|-mcpu|-mavx|-mfma|-ffast-math|-Ofast|-fno-signed-zeros|-fassociative-math")
    assert not flags.findall((ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
