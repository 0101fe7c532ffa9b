"""The parts of the site that no file in docs/ holds: the home page, the navigation, the API and the linked sources.

MkDocs calls the functions `on_...` (mkdocs.yml, hooks). Every Markdown file under docs/ becomes a page by itself: the
pages that docs/README.md links come first, in its order, then the others by name.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Pages of the site that lie elsewhere in the repository: page -> file
MOVED = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
SECTIONS = {"guide": "Guide", "lab": "Laboratory", "results": "Results"}  # other folders are named after themselves
# Heading of the public names that a package defines, in the order of the page
GROUPS = {
    "op": "The operator",
    "masks": "Masks",
    "problem": "Problems, counts and bounds",
    "lab": "Problems, counts and bounds",
    "bounds": "Problems, counts and bounds",
    "schedules": "Problems, counts and bounds",
    "machine": "Problems, counts and bounds",
    "catalogue": "Memories and models",
    "meter": "The meter",
    "base": "Errors",
}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```\w+) \w+$", flags=re.MULTILINE)  # marks for tests/test_docs.py
CELL_CODE = re.compile(r"(?<=[|( ,])`[^`\n]*\\\|[^`\n]*`")
LANGUAGES = {".py": "python", ".toml": "toml", ".cpp": "cpp", ".h": "cpp", ".sh": "sh"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and set the navigation."""
    home = files.get_file_from_path("README.md")
    if home is not None:
        files.remove(home)
    for page, source in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    api = api_pages()
    for page, text in api.items():
        files.append(File.generated(config, page, content=text))
    for source in sorted(linked_sources(files)):
        files.append(File.generated(config, source_page(source), content=listing(source)))
    config.nav = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page at pages of the site, and write what GitHub's Markdown writes differently.

    The marks of tested code blocks go. In the code of a table's cell, GitHub needs \\| where Python-Markdown takes |.
    """
    text = FENCE.sub(r"\1", relinked(markdown, page.file.src_uri))
    return CELL_CODE.sub(lambda code: code[0].replace("\\|", "|"), text)


# Links ----------------------------------------------------------------------------------------------------------------


def repository_path(page: str) -> str:
    """Return the file in the repository that a page is made of."""
    return MOVED.get(page, f"docs/{page}")


def source_page(path: str) -> str:
    """Return the page that shows a source file of the repository."""
    return f"source/{path}.md"


def target_of(page: str, link: str) -> str:
    """Return the repository's path of a relative link on a page."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(page)), link))


def site_path(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    moved = {source: page for page, source in MOVED.items()}
    if path in moved:
        return moved[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.endswith(".py") else source_page(path)


def relinked(markdown: str, page: str) -> str:
    """Rewrite the relative links of a page; links to missing files stay, so that the strict build refuses them."""

    def replace(match: re.Match[str]) -> str:
        path = target_of(page, match[2])
        if page.startswith(("api/", "source/")) or not (ROOT / path).is_file():
            return match[0]
        return match[1] + posixpath.relpath(site_path(path), posixpath.dirname(page) or ".") + match[3]

    return LINK.sub(replace, markdown)


def linked_sources(files: Files) -> set[str]:
    """Return the source files of the repository that some page links."""
    linked = set()
    for file in files.documentation_pages():
        if not file.src_uri.startswith("api/"):
            targets = (target_of(file.src_uri, match[2]) for match in LINK.finditer(file.content_string))
            linked |= {path for path in targets if (ROOT / path).is_file() and site_path(path).startswith("source/")}
    return linked


def listing(path: str) -> str:
    """Return the page that shows a source file."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {Path(path).name}\n\n`{path}`\n\n````{language}\n{(ROOT / path).read_text(encoding='utf-8')}\n````\n"


# Navigation -----------------------------------------------------------------------------------------------------------


def navigation(pages: list[str]) -> list[Any]:
    """Return the navigation: home, a section per folder of docs/, the API and the project."""
    listed = [site_path(target_of("contents.md", match[2])) for match in LINK.finditer(_contents())]
    folders = sorted({page.split("/")[0] for page in pages if "/" in page} - {"api", "source"}, key=_folder_order)

    def order(page: str) -> tuple[Any, ...]:
        return (not page.endswith(("/README.md", "/index.md")), listed.index(page) if page in listed else 10**6, page)

    sections = [
        {SECTIONS.get(folder, folder.capitalize()): sorted((p for p in pages if p.startswith(f"{folder}/")), key=order)}
        for folder in folders
    ]
    api = sorted(
        (page for page in pages if page.startswith("api/")),
        key=lambda page: (page != "api/index.md", page.count("/"), page),
    )
    moved = [page for page in MOVED if page != "index.md"]
    return [{"Home": "index.md"}, *sections, {"API": api}, {"Project": moved}]


def _contents() -> str:
    return (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def _folder_order(folder: str) -> tuple[int, str]:
    return (list(SECTIONS).index(folder) if folder in SECTIONS else len(SECTIONS), folder)


# API ------------------------------------------------------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    """Return the pages of the API: the public face by topic, then every public module beside it."""
    pages = {"api/index.md": _public_face()}
    modules = ["redblue.pebble", "redblue.jax", *_integrations()]
    for module in modules:
        options = {"show_root_heading": "false", "show_root_toc_entry": "false", "heading_level": "2"}
        lines = "".join(f"      {name}: {value}\n" for name, value in options.items())
        text = f"# {module}\n\n::: {module}\n    options:\n{lines}"
        pages[f"api/{module.removeprefix('redblue.').replace('.', '/')}.md"] = text
    return pages


def _integrations() -> list[str]:
    """Return the public modules of redblue.integrations, which need not be importable here."""
    folder = ROOT / "src" / "redblue" / "integrations"
    names = {path.stem if path.is_file() else path.name for path in folder.iterdir() if _is_module(path)}
    return [f"redblue.integrations.{name}" for name in sorted(names)]


def _is_module(path: Path) -> bool:
    return not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").is_file())


def _public_face() -> str:
    """Return the page of the names of redblue.__all__, each under the heading of the package that defines it."""
    package = importlib.import_module("redblue")
    groups: dict[str, list[str]] = {heading: [] for heading in GROUPS.values()}
    for name in package.__all__:
        thing = getattr(package, name)
        where = getattr(thing, "__module__", "").split(".")
        if name == "pebble" or len(where) < 2:
            continue  # a module with a page of its own
        error = isinstance(thing, type) and issubclass(thing, Exception)
        groups.setdefault("Errors" if error else GROUPS.get(where[1], where[1].capitalize()), []).append(name)
    lines = ["# redblue", "", "The examples of this page begin with `import redblue as rb`.", ""]
    for heading, names in groups.items():
        lines += [f"## {heading}", ""] if names else []
        for name in sorted(names, key=str.lower):
            lines += [f"::: redblue.{name}", ""]
    return "\n".join(lines)
