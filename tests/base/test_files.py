"""Every function and command that writes files follows the same rule for existing files and devices."""

import os
import stat
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from redblue import RedblueError, pebble
from redblue.base import charts
from redblue.base.files import check_target, replace_whole
from redblue.cli import main
from redblue.studies import experiments, sweep

GRAPH = pebble.chain_graph(3)
MOVES = [(0, 0), (2, 1), (3, 0), (2, 2), (1, 2)]
FIGURE = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x", "type": "quantitative"}}}

# How each function writes a file: (suffix, whether it recognises its own files, write(path, force)).
WRITERS = {
    "save_game": (".jsonl", True, lambda path, force=False: pebble.save_game(path, GRAPH, MOVES, 2, force=force)),
    "page": (".html", True, lambda path, force=False: pebble.write_game(path, GRAPH, MOVES, 2, force=force)),
    "strip": (".svg", True, lambda path, force=False: pebble.write_game(path, GRAPH, MOVES, 2, force=force)),
    "picture": (".png", False, lambda path, force=False: pebble.write_game(path, GRAPH, MOVES, 2, force=force)),
    "csv": (".csv", False, lambda path, force=False: sweep.write([], path, force)),
    "jsonl": (".jsonl", False, lambda path, force=False: sweep.write([], path, force)),
    "chart": (".svg", False, lambda path, force=False: charts.write(FIGURE, path, force)),
}


@pytest.fixture(params=WRITERS.values(), ids=WRITERS)
def writer(request):
    return request.param


def test_a_file_of_the_user_is_kept(writer, tmp_path):
    suffix, knows_own, write = writer
    path = tmp_path / f"notes{suffix}"
    path.write_text("precious")
    with pytest.raises(RedblueError, match=r"exists.*name another file, or replace it with --force \(force=True\)"):
        write(path)
    assert path.read_text() == "precious"
    write(path, force=True)
    first = path.read_bytes()
    assert first != b"precious"
    if knows_own:
        write(path)
    else:
        with pytest.raises(RedblueError, match="exists"):
            write(path)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == [path.name]


def test_permissions_and_links_stay(writer, tmp_path):
    suffix, _, write = writer
    path, link = tmp_path / f"real{suffix}", tmp_path / f"link{suffix}"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    with pytest.raises(RedblueError, match="exists"):
        write(link)
    write(link, force=True)
    assert link.is_symlink()
    assert path.read_text(errors="replace") != "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.thorough
def test_the_name_of_a_link_decides_the_format(tmp_path):
    real = tmp_path / "real.dat"
    for name, start in (("f.png", b"\x89PNG"), ("f.svg", b"<svg"), ("f.html", b"<!DOCTYPE html>")):
        real.write_text("old")
        (tmp_path / name).symlink_to(real.name)
        charts.write(FIGURE, tmp_path / name, force=True)
        assert real.read_bytes().lstrip().startswith(start)
    axes = {"n": 64, "d": 8, "words": 600, "schedule": "flash"}
    (tmp_path / "rows.jsonl").symlink_to("real.dat")
    (tmp_path / "rows.csv").symlink_to("rows.jsonl")
    for name in ("rows.jsonl", "rows.csv"):
        rows = sweep.run(axes, output=tmp_path / name, jobs=1, force=True)
        assert sweep.read(tmp_path / name) == rows
    assert all(path.is_symlink() for path in tmp_path.iterdir() if path != real)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_devices_are_written_to(writer, tmp_path):
    """/dev/full stays a device even for root, and so does a link to it."""
    suffix, _, write = writer
    link = tmp_path / f"link{suffix}"
    link.symlink_to("/dev/full")
    for path in ("/dev/full", link):
        with pytest.raises(RedblueError, match=r"cannot write .*No space left on device; name another file"):
            write(path) if suffix != ".jsonl" or write is WRITERS["save_game"][2] else sweep.write([{}] * 9, path)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert link.is_symlink()
    write("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_fifo_is_written_to(tmp_path):
    path = tmp_path / "f.jsonl"
    os.mkfifo(path)
    with pytest.raises(RedblueError, match="cannot write"):
        pebble.save_game(path, GRAPH, MOVES, 2)  # the pipe has no reader, but this must not block
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    pebble.save_game(path, GRAPH, MOVES, 2)
    with open(reader, "rb") as file:
        assert file.read().count(b"\n") == 1 + GRAPH.n + len(MOVES)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_what_cannot_be_written_leaves_the_old_file(writer, tmp_path, monkeypatch):
    suffix, _, write = writer
    path = tmp_path / f"old{suffix}"
    path.write_text("old")
    for impossible, says in (
        (tmp_path / "none" / f"x{suffix}", "there is no folder"),
        (tmp_path, "it is a folder|must end in"),
        (tmp_path / ("a" * 300 + suffix), "cannot write"),
        (tmp_path / f"a\0{suffix}", "cannot write"),
        (tmp_path / f"old{suffix}" / f"x{suffix}", "there is no folder"),
        (42, "path must be text or a path, got 42|by its name, got 42"),
    ):
        with pytest.raises(RedblueError, match=says):
            write(impossible, force=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RedblueError, match="No space left on device"):
        write(path, force=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_loops_of_links_and_sockets_are_refused(tmp_path):
    import socket

    (tmp_path / "a.csv").symlink_to("b.csv")
    (tmp_path / "b.csv").symlink_to("a.csv")
    with pytest.raises(RedblueError, match="cannot write"):
        sweep.write([], tmp_path / "a.csv", force=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s.csv"))
        with pytest.raises(RedblueError, match="it is a block device or a socket"):
            sweep.write([], tmp_path / "s.csv", force=True)


def test_a_file_that_came_in_the_meantime_is_kept(tmp_path):
    target = check_target(tmp_path / "r.csv", (".csv",), force=False)
    (tmp_path / "r.csv").write_text("mine")
    with pytest.raises(RedblueError, match="exists"):
        target.write(lambda draft: draft.write_text("redblue's"))
    assert (tmp_path / "r.csv").read_text() == "mine"


def test_a_mark_elsewhere_in_a_file_does_not_make_it_redblues(tmp_path):
    path = tmp_path / "game.jsonl"
    path.write_text('my notes on {"format": "redblue pebble game"')
    with pytest.raises(RedblueError, match="is not a file of this kind that redblue wrote"):
        pebble.save_game(path, GRAPH, MOVES, 2)


def test_a_program_that_dies_while_it_writes_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.txt"
    path.write_text("old")

    def dies(draft):
        draft.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_whole(path, dies)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.txt"]


def test_an_experiment_keeps_files_of_others(tmp_path):
    (tmp_path / "crossing.md").write_text("mine")
    with pytest.raises(RedblueError, match=r"crossing\.md exists"):
        experiments.run("crossing", out=tmp_path, quick=True, jobs=1)
    assert os.listdir(tmp_path) == ["crossing.md"]
    assert (tmp_path / "crossing.md").read_text() == "mine"


SOLVE = ("pebble", "solve", "chain:3", "--red", "2", "-o")


def test_commands_keep_files_and_devices(tmp_path, monkeypatch):
    """Every command with -o, over a file of the user."""

    def redblue(*arguments):
        return CliRunner().invoke(main.app, list(arguments))

    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "notes.html", "notes.csv", "notes.svg"):
        (tmp_path / name).write_text("precious")
    assert redblue(*SOLVE, "game.jsonl").exit_code == 0
    for arguments in (
        (*SOLVE, "notes.txt"),
        ("pebble", "trace", "flash", "--n", "4", "--d", "2", "--words", "40", "-o", "notes.txt"),
        ("pebble", "play", "game.jsonl", "-o", "notes.html"),
        ("report", "gpt2", "-m", "t4", "--no-measure", "-o", "notes.html"),
        ("sweep", "--n", "64", "--d", "8", "--words", "600", "-o", "notes.csv"),
        ("sweep", "--n", "64", "--d", "8", "--words", "600", "--picture", "notes.svg"),
        ("sparse", "causal", "--n", "64", "--picture", "notes.svg"),
        ("mask", "causal", "--n", "64", "--picture", "notes.svg"),
    ):
        refused = redblue(*arguments).exception
        assert isinstance(refused, RedblueError), arguments
        assert "--force" in str(refused)
    assert {path.read_text() for path in tmp_path.glob("notes.*")} == {"precious"}
    assert redblue(*SOLVE, "/dev/null").exit_code == 0
    assert redblue(*SOLVE, "notes.txt", "--force").exit_code == 0
    assert pebble.read_game(tmp_path / "notes.txt").red == 2


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc here")
def test_only_open_files_of_this_process_go_by_number(tmp_path):
    with (tmp_path / "own").open("w") as own, (tmp_path / "others").open("w") as others:
        for name in (f"/dev/fd/{own.fileno()}", f"/proc/self/fd/{own.fileno()}", f"/proc/{os.getpid()}/fd/1"):
            assert check_target(name, (".csv",), force=False).stream == int(name.split("/")[-1])
        with subprocess.Popen(["sleep", "60"], stdout=others) as other:
            try:
                name = f"/proc/{other.pid}/fd/1"
                with pytest.raises(RedblueError, match=r"its name must end in \.csv"):
                    check_target(name, (".csv",), force=True)
                target = check_target(name, ("",), force=True)
                assert (target.stream, target.path) == (None, tmp_path / "others")
            finally:
                other.kill()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("mask", "causal", "--n", "8"),
        ("sparse", "causal", "--n", "8", "--d", "4", "--words", "100"),
        ("sweep", "--n", "8,16", "--d", "4", "--words", "100", "--jobs", "1"),
    ],
    ids=lambda command: command[0],
)
def test_a_picture_on_standard_output_comes_without_the_result(command, as_json, tmp_path, capfdbinary):
    arguments = [*command, "--picture", "-", *["--json"] * as_json]
    main.app(arguments, standalone_mode=False)
    printed = capfdbinary.readouterr().out
    assert printed.startswith(b"<svg")
    assert printed.rstrip().endswith(b"</svg>")
    assert printed.count(b"<svg") == 1


@pytest.mark.thorough
def test_a_reader_that_closes_early_is_no_error(tmp_path):
    """The output is larger than a pipe holds, and its reader takes a line, as head does."""
    code = "import sys; from redblue.cli.main import main; sys.argv[0] = 'redblue'; main()"
    sizes = ("--n", "1:400:+1", "--d", "16", "--schedule", "standard", "--words", "1000", "--jobs", "1")
    command = [sys.executable, "-c", code, "sweep", *sizes, "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout.readline().startswith(b"n_q,")
        child.stdout.close()
        said = child.stderr.read().decode()
        status = child.wait(timeout=120)
    assert "error" not in said
    assert "Broken pipe" not in said
    assert status == 1


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_gets_the_file_and_nothing_else(name, tmp_path):
    with open(tmp_path / "game.jsonl", "w") as file:  # a redirection of the shell
        command = [sys.executable, "-c", "from redblue.cli.main import main; main()", *SOLVE, name]
        subprocess.run(command, check=True, stdout=file, timeout=120)
    assert pebble.read_game(tmp_path / "game.jsonl").graph == GRAPH
