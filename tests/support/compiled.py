"""Object files of the C++ core, for tests of its machine code."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def compiled(name: str) -> list[Path]:
    """The object files of an instruction set, by name or pattern, that are newer than the sources of the kernels."""
    sources = [path for folder in ("attention", "base", "vector") for path in (ROOT / "cpp" / folder).rglob("*.h")]
    newest = max(path.stat().st_mtime for path in sources)
    paths = ROOT.glob(f"build/*/CMakeFiles/_core.dir/cpp/vector/sets/{name}.cpp.o")
    return sorted(path for path in paths if path.stat().st_mtime > newest)
