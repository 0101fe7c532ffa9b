"""The contents and metadata of the sdist. `make wheel` builds and tests the wheels themselves."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
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
    """The files of the sdist: path -> bytes."""
    pytest.importorskip("scikit_build_core")
    out = tmp_path_factory.mktemp("sdist")
    sources = out / "sources"  # without the environments and builds of this repository, which take long to search
    ignored = shutil.ignore_patterns(".venv*", "build", "dist", ".git", ".*_cache", ".hypothesis")

    def at_top(folder, names):
        return ignored(folder, names) if Path(folder) == ROOT else {"__pycache__"} & {*names}

    shutil.copytree(ROOT, sources, ignore=at_top)
    for folder in (".venv", "build", "dist"):
        (sources / folder).mkdir()
        (sources / folder / "unwanted.py").touch()
    build = f"import scikit_build_core.build as b; b.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, capture_output=True)
    (archive,) = out.glob("redblue-*.tar.gz")
    assert archive.stat().st_size < 1_000_000
    with tarfile.open(archive) as opened:
        members = [member for member in opened.getmembers() if member.isfile()]
    return {member.name.partition("/")[2]: member.size for member in members}


@pytest.fixture(scope="module")
def info(tmp_path_factory):
    """The metadata of a wheel, which are those of the sdist."""
    build = pytest.importorskip("scikit_build_core.build")
    out = tmp_path_factory.mktemp("metadata")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        folder = build.prepare_metadata_for_build_wheel(str(out))
    return message_from_string((out / folder / "METADATA").read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_the_sdist_holds_what_builds_and_nothing_else(sdist):
    assert {path.partition("/")[0] for path in sdist} == TOP
    assert {Path(path).suffix for path in sdist} <= SUFFIXES
    assert max(sdist.values()) < 150_000
    assert not [path for path in sdist if path.startswith("cpp/tests")]


@pytest.mark.thorough
def test_the_sdist_holds_every_source(sdist):
    """It holds every file under version control in src and cpp, except C++ tests."""
    listed = subprocess.run(["git", "ls-files", "src", "cpp"], cwd=ROOT, capture_output=True, text=True)
    tracked = {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}
    if listed.returncode or not tracked:
        pytest.skip("the sources are not under version control here")
    assert {path for path in tracked if not path.startswith("cpp/tests/")} <= set(sdist)
    assert {
        "src/redblue/py.typed",
        "src/redblue/catalogue/memories.toml",
        "src/redblue/bounds/phases.csv",
        "src/redblue/bounds/phases_stored.csv",
    } <= tracked


def test_metadata(info):
    assert info["Name"] == "redblue"
    assert info["License-Expression"] == "Apache-2.0"
    assert info.get_all("License-File") == ["LICENSE"]
    assert info["Requires-Python"] == ">=3.10"
    assert info["Description-Content-Type"] == "text/markdown"
    assert info["Version"] == metadata("redblue")["Version"]


def test_users_need_no_framework(info):
    """Only extras install PyTorch, JAX, transformers and build tools."""
    needs = [Requirement(text) for text in info.get_all("Requires-Dist")]
    always = {need.name for need in needs if need.marker is None or "extra" not in str(need.marker)}
    assert "numpy" in always
    assert not always & {"torch", "triton", "jax", "transformers", "cmake", "nanobind", "pytest"}


def test_extras_are_documented(info):
    """The guide lists every extra for users, and every extra that the sources mention exists."""
    extras = set(info.get_all("Provides-Extra")) - {"dev", "docs"}
    guide = (ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", guide, flags=re.MULTILINE)) == extras
    mentioned = set()
    for source in (ROOT / "src").rglob("*.py"):
        mentioned.update(re.findall(r"redblue\[(\w+)\]", source.read_text(encoding="utf-8")))
    assert {"torch", "gpu"} <= mentioned <= extras


def test_the_core_is_built_for_every_cpu():
    """The build has no flags that tune to the building machine or that give up IEEE arithmetic."""
    flags = re.compile(r"-march|-mtune|-mcpu|-mavx|-mfma|-ffast-math|-Ofast|-fno-signed-zeros|-fassociative-math")
    assert not flags.findall((ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script():
    """The script of `make wheel`, without its external tools."""
    spec = importlib.util.spec_from_file_location("wheel_script", ROOT / ".ci" / "wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.run = lambda *command, **options: ""
    return module


WHOLE = ("redblue/__init__.py", "redblue/compiled/_core.abi3.so", "redblue-1.dist-info/licenses/LICENSE")


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("redblue-1-cp312-abi3-manylinux_2_28_x86_64.whl", WHOLE, None),
        ("redblue-1-cp312-abi3-manylinux_2_28_x86_64.whl", WHOLE[1:], "lacks ['redblue/__init__.py']"),
        ("redblue-1-cp312-abi3-manylinux_2_28_x86_64.whl", (WHOLE[0], WHOLE[2]), "beside the sources, []"),
        ("redblue-1-cp312-abi3-manylinux_2_28_x86_64.whl", (*WHOLE, "redblue/a.o"), "'redblue/a.o'"),
        ("redblue-1-cp312-abi3-manylinux_2_28_x86_64.whl", WHOLE[:2], "lacks the licence"),
        ("redblue-1-cp312-abi3-linux_x86_64.whl", WHOLE, "no manylinux tag"),
    ],
)
def test_a_wheel_that_lacks_something_is_refused(script, name, files, says, tmp_path, monkeypatch):
    monkeypatch.setattr(script.sys, "platform", "linux")
    sdist, wheel = tmp_path / "redblue-1.tar.gz", tmp_path / name
    with tarfile.open(sdist, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(f"redblue-1/src/{WHOLE[0]}"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    if says is None:
        script.check_wheel(wheel, sdist)
        return
    with pytest.raises(SystemExit, match=re.escape(says)):
        script.check_wheel(wheel, sdist)


def test_a_wheel_that_is_too_large_is_refused(script, tmp_path):
    large = tmp_path / "large.whl"
    with large.open("wb") as file:
        file.truncate(script.MAX_WHEEL_BYTES)
    with pytest.raises(SystemExit, match="6,000,000 bytes; less than 6,000,000 are allowed"):
        script.check_size(large, script.MAX_WHEEL_BYTES)


def test_flags_of_the_environment_do_not_tune_the_core(script, tmp_path, monkeypatch):
    """The build sees neither CXXFLAGS nor CMAKE_ARGS."""
    environments = []
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_BUILD_TYPE=Debug")

    def run(*command, env=None, **options):
        if "wheel" in command:
            environments.append(env)
            (tmp_path / "raw3.12").mkdir()
            (tmp_path / "raw3.12" / "redblue-1-cp312-abi3-macosx_11_0_arm64.whl").touch()

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "version", lambda python: (3, 12))
    monkeypatch.setattr(script, "check_wheel", lambda wheel, sdist: None)
    monkeypatch.setattr(script.sys, "platform", "darwin")
    (tmp_path / "out").mkdir()
    assert script.build_wheel("python", tmp_path / "s.tar.gz", tmp_path, tmp_path / "out").exists()
    assert not {"CXXFLAGS", "CMAKE_ARGS"} & set(environments[0])
    assert "PATH" in environments[0]
