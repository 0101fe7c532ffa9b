"""The documentation site: links, navigation and API of docs/pages.py, and a strict build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("griffe")

import redblue as rb
from docs import api_extension, pages

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "docs/guide/masks.md#algebra", "guide/masks.md#algebra"),
        ("index.md", "docs/README.md", "contents.md"),
        ("index.md", "docs/lab/words.svg", "lab/words.svg"),
        ("index.md", "src/redblue/catalogue/memories.toml", "source/src/redblue/catalogue/memories.toml.md"),
        ("guide/attention.md", "../../examples/help_topics.py", "../source/examples/help_topics.py.md"),
        ("guide/attention.md", "../lab/meter.md", "../lab/meter.md"),
        ("contents.md", "guide/gpu.md", "guide/gpu.md"),
        ("results/README.md", "operator.svg", "operator.svg"),
        ("guide/masks.md", "no-such-page.md", "no-such-page.md"),  # the strict build refuses it
        ("guide/masks.md", "https://example.org/x.md", "https://example.org/x.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(page, link, expected):
    assert pages.relinked(f"see [this]({link}).", page) == f"see [this]({expected})."


def test_every_page_is_in_the_navigation_once_and_guides_keep_their_order():
    files = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")]
    built = [path for path in files if path != "README.md"] + [*pages.MOVED, *pages.api_pages(), "source/x.py.md"]
    flat = []
    for section in pages.navigation(built):
        for part in section.values():
            flat += [part] if isinstance(part, str) else part
    assert sorted(flat) == sorted(page for page in built if not page.startswith("source/"))
    guides = [page for page in flat if page.startswith("guide/")]
    assert guides[0] == "guide/model.md"
    unlisted = pages.navigation([*built, "guide/a-new-page.md", "topics/other.md"])
    assert unlisted[1]["Guide"][-1] == "guide/a-new-page.md"
    assert {"Topics": ["topics/other.md"]} in unlisted


def test_the_api_holds_every_public_name():
    text = pages.api_pages()["api/index.md"]
    for name in set(rb.__all__) - {"pebble", "__version__"}:
        assert f"\n::: redblue.{name}\n" in text, name
    assert "::: redblue.pebble" in pages.api_pages()["api/pebble.md"]
    assert "api/jax.md" in pages.api_pages()


def test_docstrings_become_markdown():
    text = """Do it.

n_q, n_k: the sizes (a_b * c_d * e).
mask: which pairs
attend.

Returns out[0] <at once>."""
    assert api_extension.markdown(text).splitlines() == [
        "Do it.",
        "",
        r"- `n_q, n_k`: the sizes (a\_b \* c\_d \* e).",
        r"- `mask`: which pairs",
        "    attend.",
        "",
        r"Returns out\[0\] \<at once>.",
    ]


def build(config, target):
    """Build the site, without --quiet, which would also hide warnings from the strict build."""
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_the_site_loads_nothing_from_the_network_and_a_broken_link_fails_its_build(tmp_path):
    """The broken link is the only warning, so every other link is right. `make site` builds the site without it."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("src", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs" / "guide" / "broken.md").write_text("# Broken\n\n[a link](nowhere.md)\n")
    result = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert result.returncode != 0
    assert "nowhere.md" in result.stderr
    assert "Aborted with 1 warnings in strict mode!" in result.stdout + result.stderr
    built = list((tmp_path / "site").glob("**/*.html"))
    assert len(built) > 30
    for page in built:
        text = page.read_text(encoding="utf-8")
        for fetched in ('src="http', "src='http", '<link rel="stylesheet" href="http', "url(http"):
            assert fetched not in text, page
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    signature = api.split('id="redblue.attention"')[1].split("</pre>")[0]
    assert "softcap" in signature  # the signature that the decorator made
    assert "**options" not in signature
