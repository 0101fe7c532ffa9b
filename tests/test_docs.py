"""The examples of the README, of the guides and of examples/ run as they are written."""

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from redblue.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MASKS = (ROOT / "docs" / "guide" / "masks.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+(?: torch| jax| valgrind)?)\n(.*?)```", flags=re.DOTALL)
OPERATOR = (ROOT / "docs" / "guide" / "attention.md").read_text(encoding="utf-8")
COMMAND_LINE = (ROOT / "docs" / "guide" / "command-line.md").read_text(encoding="utf-8")
FLEX = (ROOT / "docs" / "guide" / "flex.md").read_text(encoding="utf-8")
METER = (ROOT / "docs" / "lab" / "meter.md").read_text(encoding="utf-8")
BLOCKS = [*BLOCK.findall(README), *BLOCK.findall(MASKS), *BLOCK.findall(OPERATOR), *BLOCK.findall(METER)]
BLOCKS += BLOCK.findall(COMMAND_LINE)
BLOCKS += BLOCK.findall((ROOT / "docs" / "guide" / "jax.md").read_text(encoding="utf-8"))
BLOCKS += BLOCK.findall(FLEX)
BLOCKS += BLOCK.findall((ROOT / "docs" / "guide" / "flash-attn.md").read_text(encoding="utf-8"))
COMMANDS = [
    line.removeprefix("redblue ")
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.startswith("redblue ")
]


def test_the_readme_has_examples():
    assert len(COMMANDS) >= 9
    assert len(BLOCK.findall(MASKS)) >= 4
    assert BLOCK.findall(OPERATOR)
    assert list((ROOT / "examples").glob("*.py"))
    assert any(language == "python" for language, _ in BLOCKS)


def test_python_examples(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "README.md or docs", "exec"), {})
    assert "shared memory/L2" in capsys.readouterr().out


def test_torch_examples():
    pytest.importorskip("torch")
    examples = [text for language, text in BLOCKS if language == "python torch"]
    assert examples
    for text in examples:
        exec(compile(text, "README.md", "exec"), {})


def test_jax_examples():
    pytest.importorskip("jax.numpy")
    examples = [text for language, text in BLOCKS if language == "python jax"]
    assert examples
    for text in examples:
        exec(compile(text, "docs/guide/jax.md", "exec"), {})


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_examples():
    examples = [text for language, text in BLOCKS if language == "python valgrind"]
    assert examples
    for text in examples:
        exec(compile(text, "docs", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_examples(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path" / "to").mkdir(parents=True)
    config = '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}'
    (tmp_path / "path" / "to" / "config.json").write_text(config)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


PAGES = sorted(
    page for folder in (ROOT, ROOT / "docs") for page in folder.glob("**/*.md" if folder != ROOT else "*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist(page):
    for link in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_table_is_empty(page):
    assert not re.search(r"^\|[-|: ]+\|\n(?!\|)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
