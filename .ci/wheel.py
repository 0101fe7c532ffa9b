"""Builds wheels from the sdist, repairs them, and tests each in an empty environment: make wheel.

Arguments name the Pythons to build for. Without arguments: the Python of this script and, if that is older than 3.12,
the oldest newer one on this machine, whose wheel has the stable ABI and serves every later Python.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WHEEL_BYTES, MAX_SDIST_BYTES = 6_000_000, 1_000_000
STABLE = (3, 12)  # the first Python whose stable ABI nanobind supports
NEWEST = 20  # searches below Python 3.20
# Compiler flags of the environment, which could tune the core to this machine's CPU.
FLAGS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", help="Pythons to build for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for the sdist and the wheels")
    parser.add_argument("--extra", action="append", default=[], help="also install this extra, as torch, to test it")
    parser.add_argument("--sdist-only", action="store_true", help="stop after the sdist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redblue-wheel-") as folder:
        work = Path(folder)
        sdist = build_sdist(options.out)
        if options.sdist_only:
            print(describe(sdist))
            return
        lines = []
        for python in options.pythons or default_pythons():
            wheel = build_wheel(python, sdist, work, options.out)
            versions = []
            for tester in [python, *newer_pythons(python)] if "-abi3-" in wheel.name else [python]:
                test_wheel(tester, wheel, work / f"env{len(list(work.glob('env*')))}", options.extra)
                versions.append(".".join(map(str, version(tester))))
            lines.append(f"{describe(wheel)}, works in Python {', '.join(versions)}")
    print(describe(sdist), *lines, sep="\n")
    if not any("-abi3-" in line for line in lines):
        print("no wheel with the stable ABI: this machine has no Python 3.12 or newer, or none was named")


def run(*command: object, **options) -> str:
    """Run a command, and return its standard output. Ends this script with the command's output if it fails."""
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}\nfailed with status {done.returncode}")
    return done.stdout


def describe(file: Path) -> str:
    return f"{file.name}: {file.stat().st_size / 1e6:.2f} MB"


@cache
def version(python: str) -> tuple[int, int]:
    """Return the version of a Python, as (3, 12)."""
    major, minor = run(python, "-c", "import sys; print(*sys.version_info[:2])").split()
    return int(major), int(minor)


@cache
def pythons_here() -> dict[tuple[int, int], str]:
    """Find the Pythons 3.12 and newer on PATH or installed by pyenv: the first of each version."""
    pythons = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(STABLE[1], NEWEST):
        candidates = [shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"))]
        for python in map(str, filter(None, candidates)):  # pyenv's shims exist for Pythons that do not run
            if not subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode:
                pythons[version(python)] = python
                break
    return dict(sorted(pythons.items()))


def newer_pythons(python: str) -> list[str]:
    return [other for number, other in pythons_here().items() if number > version(python)]


def default_pythons() -> list[str]:
    """Name the Pythons that together give one wheel for this version and one with the stable ABI."""
    mine = getattr(sys, "_base_executable", sys.executable)
    return [mine] if version(mine) >= STABLE else [mine, *list(pythons_here().values())[:1]]


def build_sdist(out: Path) -> Path:
    """Build the sdist in an isolated environment, and check its size and metadata."""
    print("building the sdist", flush=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT)
    sdist = max(out.glob("redblue-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    check_size(sdist, MAX_SDIST_BYTES)
    run(sys.executable, "-m", "twine", "check", "--strict", sdist)
    return sdist


def build_wheel(python: str, sdist: Path, work: Path, out: Path) -> Path:
    """Build a wheel from the sdist in an isolated environment, repair it on Linux, and check it."""
    number = ".".join(map(str, version(python)))
    print(f"building the wheel for Python {number} from {sdist.name}", flush=True)
    build, raw = work / f"build{number}", work / f"raw{number}"
    run(python, "-m", "venv", build)
    clean = {name: value for name, value in os.environ.items() if name not in FLAGS}
    run(build / "bin" / "pip", "wheel", "--no-deps", "--wheel-dir", raw, sdist, env=clean, cwd=work)
    (wheel,) = raw.glob("*.whl")
    if sys.platform == "linux":
        repaired = work / f"repaired{number}"
        tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel, env=tools)
        (wheel,) = repaired.glob("*.whl")
    check_wheel(wheel, sdist)
    return Path(shutil.copy(wheel, out))


def check_size(file: Path, limit: int) -> None:
    if file.stat().st_size >= limit:
        sys.exit(f"{file.name} has {file.stat().st_size:,} bytes; less than {limit:,} are allowed")


def check_wheel(wheel: Path, sdist: Path) -> None:
    """Check the size, metadata, contents, tags and stable ABI of a wheel."""
    check_size(wheel, MAX_WHEEL_BYTES)
    run(sys.executable, "-m", "twine", "check", "--strict", wheel)
    with tarfile.open(sdist) as archive:
        paths = (member.name.partition("/src/")[2] for member in archive.getmembers() if member.isfile())
        sources = {path for path in paths if path}
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
    installed = {name for name in files if ".dist-info/" not in name}
    cores = installed - sources
    if sources - installed or len(cores) != 1 or not any(map(re.compile(r"redblue/compiled/_core\..*so").match, cores)):
        sys.exit(f"{wheel.name} lacks {sorted(sources - installed)} and holds, beside the sources, {sorted(cores)}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in files):
        sys.exit(f"{wheel.name} lacks the licence")
    if sys.platform == "linux" and "manylinux" not in wheel.name:
        sys.exit(f"{wheel.name} has no manylinux tag")
    if "-abi3-" in wheel.name:
        run(sys.executable, "-m", "abi3audit", "--strict", wheel)


def test_wheel(python: str, wheel: Path, env: Path, extras: list[str]) -> None:
    """Install a wheel into an empty environment without any compiler, and use it there outside the repository."""
    print(f"testing {wheel.name} in an empty environment of Python {'.'.join(map(str, version(python)))}", flush=True)
    run(python, "-m", "venv", env)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REDBLUE"))}
    bare |= {"PATH": str(env / "bin"), "CC": "/bin/false", "CXX": "/bin/false", "XDG_CACHE_HOME": str(env / "cache")}
    what = f"redblue[{','.join(extras)}] @ {wheel.as_uri()}" if extras else wheel
    run(env / "bin" / "pip", "install", "--only-binary=:all:", "-c", ROOT / "constraints.txt", what, env=bare, cwd=env)
    run(env / "bin" / "pip", "check", env=bare, cwd=env)
    check = ROOT / ".ci" / "installed.py"
    for row in ({}, {"REDBLUE_ISA": "portable"}):
        print(run(env / "bin" / "python", "-I", check, *extras, env=bare | row, cwd=env), end="", flush=True)
    report = (
        "report",
        "gpt2",
        "--memory",
        "this-machine",
        "--memory",
        "h100-sxm",
        "--n",
        "256",
        "--output",
        "page.html",
    )
    run(env / "bin" / "redblue", *report, env=bare, cwd=env)
    if "gpt2" not in (env / "page.html").read_text(encoding="utf-8"):
        sys.exit("the report lacks its model")


if __name__ == "__main__":
    main()
