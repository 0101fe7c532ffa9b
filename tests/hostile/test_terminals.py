"""Hostile names in every argument that takes a name: status 0 or 2, no traceback, no control characters printed."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from redblue.base.terminal import CONTROL
from redblue.cli.main import main
from support.examples import examples, thorough

FRAGMENTS = (
    *(
        "[/b]",
        "[bold]",
        "[link=x]",
        "[",
        "\\[",
        ":100:",
        "%s",
        "{0}",
        "'",
        '"',
        " ",
        "-",
        "--",
        ",",
        ":",
        "=",
        "&",
        "~(",
    ),
    *("\x1b[31m", "\x1b]0;title\x07", "\x07", "\r", "\n", "\t", "\b", "\x7f", "\x9b31m", "\u202e", "\u2028"),
    *(
        "\udcff",
        "\udc80x",
        "é",
        "日本",
        "≥",
        "\N{COMBINING ACUTE ACCENT}",
        "a" * 300,
        "0" * 300,
        "x.toml",
        ".json",
        "/",
    ),
)
NAMES = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).map("".join)
SIZES = ("--n", "8", "--d", "4")
WORDS = ("--words", "900")
COMMANDS = (  # {} stands for the name
    *(("{}",), ("plan", "{}"), ("plan", *SIZES, "-m", "{}"), ("plan", *SIZES, "-m", "{}.toml")),
    *(("plan", *SIZES, "-m", "t4", "--mask", "{}"), ("plan", *SIZES, "--dtype", "{}"), ("plan", "--{}")),
    *(("count", "{}"), ("count", "flash", *SIZES, *WORDS, "--index", "{}"), ("count", *SIZES, "--tiles", "{}=4")),
    *(("bound", "--n", "{}", "--d", "4", *WORDS), ("bound", *SIZES, *WORDS, "--direction", "{}")),
    *(("models", "{}"), ("models", "{}.json"), ("memories", "{}"), ("memories", "{}.toml"), ("schedules", "{}")),
    *(("report", "{}"), ("report", "gpt2", "-m", "{}"), ("experiment", "{}"), ("mask", "{}", "--n", "8")),
    *(
        ("mask", "dense:{}", "--n", "8"),
        ("mask", "blocks:{},4", "--n", "8"),
        ("mask", "full", "--n", "8", "--tile", "{}"),
    ),
    *(("mask", "full", "--n", "8", "--picture", "{}"), ("sparse", "{}", "--n", "8"), ("sparse", "{}.mtx")),
    *(("sweep", *SIZES, "--words", "{}"), ("sweep", *SIZES, *WORDS, "--schedule", "{}"), ("sweep", *SIZES, "-m", "{}")),
    *(("sweep", *SIZES, *WORDS, "-o", "{}.csv"), ("sweep", *SIZES, *WORDS, "--picture", "{}.svg", "--y", "{}")),
    *(("measure", *SIZES, *WORDS, "--with", "{}"), ("measure", *SIZES, *WORDS, "--with", "probe", "--boundary", "{}")),
    *(("pebble", "{}"), ("pebble", "solve", "{}", "--red", "3"), ("pebble", "solve", "fft:{}", "--red", "3")),
    *(("pebble", "check", "{}.jsonl"), ("pebble", "play", "{}"), ("pebble", "trace", "{}")),
    ("pebble", "solve", "tree:2,2", "--red", "3", "-o", "{}.jsonl"),
)
ENCODINGS = ("utf-8", "ascii", "latin-1")
COLUMNS = ("0", "1", "20", "40", "80", "-3", "x")
tried = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty working folder into which commands may write."""
    return tmp_path_factory.mktemp("hostile")


def run(folder, arguments, encoding="utf-8", columns="80"):
    """Run the command line as its entry point does, on streams of this encoding. Returns the status and both texts."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["redblue", *arguments])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as stopped:
            main()
    tried.append(arguments)
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))
    return stopped.value.code or 0, *texts


def check(folder, arguments, encoding="utf-8", columns="80"):
    """Run a command, check its output, and return the texts of standard output and standard error."""
    status, out, said = run(folder, arguments, encoding, columns)
    assert status in (0, 2), (arguments, status)
    assert (status == 0) or said.startswith(("error: ", "Usage", " ")) or out, arguments
    assert not re.search(CONTROL, out + said), (arguments, out, said)
    assert "Traceback" not in out + said
    return out, said


@given(st.sampled_from(COMMANDS), NAMES, st.sampled_from(ENCODINGS), st.sampled_from(COLUMNS))
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_names(folder, command, name, encoding, columns):
    check(folder, [argument.replace("{}", name) for argument in command], encoding, columns)


@pytest.mark.thorough
@pytest.mark.nightly
@given(st.sampled_from(COMMANDS), NAMES, st.sampled_from(ENCODINGS), st.sampled_from(COLUMNS))
@examples(600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_drawn_names(folder, command, name, encoding, columns):
    check(folder, [argument.replace("{}", name) for argument in command], encoding, columns)


def test_names_were_tried():
    assert len(tried) >= 20  # of a third of the examples
    print(f"{len(tried):,} hostile command lines tried")


# Names inside files, which commands print


TITLE = "[/b]\x1b[31m\x07\u202eé"


def test_titles_of_machines(folder):
    level = "[[m.levels]]\nname = {name}\ncapacity = {{kib = {size}, source = {name}}}\n"
    quoted = json.dumps(TITLE)
    levels = "".join(level.format(name=quoted, size=size) for size in (32, 64))
    (folder / "own.toml").write_text(f'[m]\ntitle = {quoted}\nkind = "cpu"\n{levels}', encoding="utf-8")
    for encoding in ENCODINGS:
        for command in (
            ["memories", "own.toml"],
            ["plan", *SIZES, "-m", "own.toml"],
            ["sweep", *SIZES, "-m", "own.toml"],
        ):
            out, _ = check(folder, command, encoding, "60")
            assert "[/b]\\x1b[31m\\x07\\u202e" in out


def test_names_of_models(folder):
    config = {"model_type": TITLE, "architectures": [TITLE], "dtype": TITLE, "is_causal": True, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "num_hidden_layers": 2}
    model = folder / "m[/b]\x1b[31m" / "config.json"
    model.parent.mkdir(parents=True)
    model.write_text(json.dumps(config))
    out, _ = check(folder, ["models", str(model)])
    assert "[/b]\\x1b[31m" in out
    check(folder, ["plan", str(model), "-m", "t4"], "ascii", "40")


def test_labels_of_graphs(folder):
    (folder / "[b]\x1b.txt").write_text("[/x]\x1b[1m c\n\x07 c\n", encoding="utf-8")
    check(folder, ["pebble", "solve", "[b]\x1b.txt", "--red", "3", "-o", "labels.jsonl"])
    check(folder, ["pebble", "check", "labels.jsonl"])
    check(folder, ["pebble", "solve", "[b]\x1b.txt", "--red", "1"])


@pytest.mark.parametrize(
    ("command", "suffix"),
    [(["sweep", *SIZES, *WORDS], "csv"), thorough(["report", "gpt2", "-m", "t4", "--n", "64"], "html")],
)
def test_markup_in_the_path_of_an_output(folder, command, suffix):
    """Formerly, printing the path of the written report raised MarkupError."""
    file = Path("d[", "b]", f"x.{suffix}")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    _, said = check(folder, [*command, "-o", os.fspath(file)])
    assert said.splitlines()[-1] == f"written: {file}"
    assert (folder / file).exists()
