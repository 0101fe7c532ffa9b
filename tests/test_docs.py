"""The examples of the README, of the guides and of examples/ run as they are written."""

import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from redblue.cli.main import app
from support.examples import nightly

ROOT = Path(__file__).parents[1]
# The pages whose examples run. tests/pebble/test_docs.py runs those of the pebble game, and
# tests/integrations/transformers/test_models.py those of transformers.md, which build on each other.
GUIDES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs" / "guide").glob("*.md") if page.name != "transformers.md"),
    *(ROOT / "docs" / "lab" / name for name in ("fast-and-approximate.md", "meter.md", "network.md")),
]
BLOCK = re.compile(r"```(\w+(?: \w+)?)\n(.*?)```", flags=re.DOTALL)  # the second word names a required package
BLOCKS = {page: BLOCK.findall(page.read_text(encoding="utf-8")) for page in GUIDES}
SLOW = {  # they import large libraries, or measure
    "jax.md": pytest.mark.thorough,
    "meter.md": pytest.mark.thorough,
    "paper.md": pytest.mark.thorough,
    "packed_documents.py": pytest.mark.thorough,
}
EXAMPLES = [
    pytest.param(
        text, language.removeprefix("python").strip(), id=f"{page.stem}-{number}", marks=SLOW.get(page.name, ())
    )
    for page, blocks in BLOCKS.items()
    for number, (language, text) in enumerate(blocks)
    if language.split()[0] == "python"
]
COMMANDS = sorted(
    {
        line.removeprefix("redblue ")
        for blocks in BLOCKS.values()
        for language, text in blocks
        if language == "console"
        for line in text.splitlines()
        if line.startswith("redblue ")
    }
)


def test_the_pages_have_examples():
    assert len(COMMANDS) >= 9
    assert len(EXAMPLES) >= 20
    assert all(BLOCKS[page] for page in GUIDES)
    assert list((ROOT / "examples").glob("*.py"))


@pytest.fixture
def in_a_copy(tmp_path, monkeypatch):
    """A working directory with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path" / "to").mkdir(parents=True)
    config = '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}'
    (tmp_path / "path" / "to" / "config.json").write_text(config)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's compiler, which torchtitan loads
@pytest.mark.parametrize(("text", "needs"), EXAMPLES)
def test_python_examples(text, needs, in_a_copy):
    if needs == "valgrind" and shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    if needs and needs != "valgrind":
        pytest.importorskip(needs)
    exec(compile(text, "README.md or docs", "exec"), {"__name__": "example"})


SLOW_COMMANDS = ("report", "sparse")  # tests/studies runs both with smaller problems
TRIED = [nightly(command) if command.startswith(SLOW_COMMANDS) else command for command in COMMANDS]


@pytest.mark.parametrize("command", TRIED)
def test_command_examples(command, in_a_copy, own_schedules):
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output


# Arguments with which an example takes a second or two; other scripts run as their docstrings say.
SMALL = {
    "diffusion_unet.py": ["--size", "8", "--width", "8", "--steps", "1"],
    "gpt.py": ["--n", "32", "--steps", "2", "--layers", "1", "--d-model", "32"],
    "graph_mask.py": ["--nodes", "80", "--steps", "2"],
    "long_sequence.py": ["--tokens", "64", "--window", "8", "--steps", "2"],
    "own_schedule.py": ["--words", "4096"],
    "packed_documents.py": ["--tokens", "300", "--steps", "1"],
    "serve.py": ["--demo", "--requests", "4"],
    "t5_bias.py": ["--n", "24", "--steps", "2"],
}
SCRIPTS = [
    pytest.param(path, id=path.name, marks=SLOW.get(path.name, ()))
    for path in sorted((ROOT / "examples").glob("*.py"))
    if '"__main__"' in path.read_text(encoding="utf-8")
]
NEEDS = {
    "diffusion_unet.py": ("torch", r"redblue\[torch\]"),
    "gpt.py": ("torch", r"redblue\[torch\]"),
    "graph_mask.py": ("networkx", "pip install 'networkx'"),
    "long_sequence.py": ("torch", r"redblue\[torch\]"),
    "packed_documents.py": ("transformers", r"redblue\[transformers\]"),
    "t5_bias.py": ("torch", r"redblue\[torch\]"),
}


def require(name):
    """Skip the test if a package that the example needs is missing."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name][0])


def run_script(script, arguments, monkeypatch):
    """Run a script as `python SCRIPT ARGUMENTS` does, without another process."""
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr("sys.argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS)
def test_examples_run(script, capsys, monkeypatch, tmp_path, own_schedules):
    require(script.name)
    monkeypatch.chdir(tmp_path)
    run_script(script, SMALL.get(script.name, []), monkeypatch)
    assert capsys.readouterr().out


def test_an_example_draws_a_figure(monkeypatch, tmp_path, own_schedules, capsys):
    script = ROOT / "examples" / "own_schedule.py"
    run_script(script, ["--figure", str(tmp_path / "own.svg")], monkeypatch)
    assert "few_keys" in (tmp_path / "own.svg").read_text()
    assert "accepted with" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_examples_explain_their_options(name, capsys, monkeypatch, own_schedules):
    require(name)
    with pytest.raises(SystemExit) as stopped:
        run_script(ROOT / "examples" / name, ["--help"], monkeypatch)
    assert stopped.value.code == 0
    assert f"python examples/{name}" in capsys.readouterr().out


WRONG_OPTIONS = [
    ("diffusion_unet.py", "--size 17", "argument --size: must be a multiple of 2 of at least 2, got '17'"),
    ("diffusion_unet.py", "--steps 0", "argument --steps: must be a whole number of at least 1, got '0'"),
    ("gpt.py", "--heads 3", "--d-model must be a multiple of --heads, got 256 and 3"),
    ("gpt.py", "--text nowhere.txt", "cannot read nowhere.txt: No such file or directory"),
    ("graph_mask.py", "--nodes 42", "argument --nodes: must be a multiple of 4 of at least 40, got '42'"),
    ("t5_bias.py", "--n 1e3", "argument --n: must be a whole number of at least 4, got '1e3'"),
    ("serve.py", "--pages 0", "argument --pages: must be a whole number of at least 1, got '0'"),
    ("serve.py", "--port -1", "argument --port: must be a whole number of at least 0, got '-1'"),
    ("own_schedule.py", "--words 1", "error: flash forward with d = 128"),
    ("own_schedule.py", "--figure own.foo", "error: cannot write own.foo: its name must end in"),
    pytest.param("packed_documents.py", "--tokens 0", "argument --tokens: must be", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG_OPTIONS)
def test_examples_refuse_wrong_options(name, arguments, message, capsys, monkeypatch, own_schedules):
    require(name)
    with pytest.raises(SystemExit) as stopped:
        run_script(ROOT / "examples" / name, arguments.split(), monkeypatch)
    assert message in capsys.readouterr().err + str(stopped.value)


@pytest.mark.parametrize("name", NEEDS)
def test_examples_name_a_missing_package(name, monkeypatch):
    package, message = NEEDS[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=message):
        run_script(ROOT / "examples" / name, [], monkeypatch)


def test_examples_end_where_results_differ(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    torch = pytest.importorskip("torch")
    import measuring

    ones = torch.ones(3)
    measuring.check_close("losses", ones, ones + 1e-5, 1e-3)
    for wrong in (ones + 0.1, ones * torch.nan):
        with pytest.raises(SystemExit, match="losses differ by more than"):
            measuring.check_close("losses", wrong, ones, 1e-3)


PAGES = sorted(
    page for folder in (ROOT, ROOT / "docs") for page in folder.glob("**/*.md" if folder != ROOT else "*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist_and_no_table_is_empty(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:\s]+)[)#]", text):
        assert (page.parent / link).exists(), link
    assert not re.search(r"^\|[-|: ]+\|\n(?!\|)", text, flags=re.MULTILINE)
