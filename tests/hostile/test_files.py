"""Damaged and wrong files: a valid result or a RedblueError, never another exception."""

import copy
import json
import random

import pytest

import redblue as rb
from redblue import RedblueError, pebble
from redblue.catalogue import models
from redblue.catalogue.memories import CATALOGUE, memory, read_memories
from redblue.studies import sweep
from support.sweeps import SMALL

MAX_DEPTH = 20_000
VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2**70,
    1e299,
    1e308,
    -0.0,
    "",
    "x" * 300,
    "\x1b[31m[/b]",
    [],
    [[]],
    [1, "a"],
    {},
    {"a": 1},
]
VALUES += [float("inf"), float("nan"), "512", 1.5, 10**400]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "sliding_window": 16,
    "rope_scaling": {"type": "linear", "factor": 2.0},
}
BOARD = """
[my-board]
title = "A board"
kind = "gpu"
tile_multiple = 16
device_names = ["Board"]
peak.float32 = { tflop_per_second = 1.5, source = "datasheet" }
facts.shaders = { lanes = 128, source = "datasheet" }
[[my-board.levels]]
name = "shared memory"
capacity = { kib = 64, source = "datasheet" }
count = { instances = 8, source = "datasheet" }
[[my-board.levels]]
name = "DRAM"
bandwidth = { gb_per_second = 100, source = "datasheet" }
"""


def tried(attempt, *arguments):
    """Return 1 if the attempt succeeds, 0 if it raises RedblueError. Any other exception fails the test."""
    try:
        attempt(*arguments)
    except RedblueError:
        return 0
    return 1


def damaged(content, draw):
    """Flip, remove, insert, double or cut bytes."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place, length = draw.randrange(len(data) + 1), draw.randint(0, 12)
        piece = draw.choice((b"", draw.randbytes(length), bytes(data[:length]), b"1e308", b"inf", b"[", b"\n", b"-9"))
        data[place : place + draw.randint(0, 12)] = piece
    return bytes(data[: draw.randint(0, len(data))] if draw.random() < 0.1 else data)


def mutated(value, draw):
    """Replace, remove or add one value somewhere in a tree of JSON."""
    value = copy.deepcopy(value)
    spot = value
    while isinstance(spot, (dict, list)) and spot:
        key = draw.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
        if not isinstance(spot[key], (dict, list)) or not spot[key] or draw.random() < 0.5:
            if draw.random() < 0.3:
                del spot[key]
            else:
                spot[key] = draw.choice(VALUES)
            return value
        spot = spot[key]
    return draw.choice(VALUES)


@pytest.fixture
def game(tmp_path):
    graph = pebble.attention_graph(2, 1)
    return pebble.save_game(tmp_path / "game.jsonl", graph, pebble.heuristic(graph, 5).moves, 5)


def play(path):
    pebble.check(*pebble.read_game(path))


def test_games(game):
    """Bytes damaged, and every line replaced by JSON of another shape."""
    draw, content, count = random.Random(1), game.read_bytes(), 0
    lines = content.splitlines()
    for _ in range(400):
        game.write_bytes(damaged(content, draw))
        count += 1
        tried(play, game)
    for _ in range(400):
        number = draw.choice((0, 0, draw.randrange(len(lines))))
        line = json.dumps(mutated(json.loads(lines[number]), draw)).encode()
        game.write_bytes(b"\n".join([*lines[:number], line, *lines[number + 1 :]]))
        count += 1
        tried(play, game)
    assert count == 800


def test_games_without_a_field(game):
    header, *rest = game.read_text().splitlines()
    for field in json.loads(header):
        less = {name: value for name, value in json.loads(header).items() if name != field}
        game.write_text("\n".join([json.dumps(less), *rest]))
        with pytest.raises(RedblueError, match="line 1"):
            pebble.read_game(game)


@pytest.mark.parametrize("number", ["1e299", "1e308", "inf", "nan", "-inf", "9" * 400, "0", "-1", "true", '"x"', "[]"])
def test_numbers_in_memories(number, tmp_path):
    """Every figure of a machine replaced by this number: a plan or an error."""
    path, count = tmp_path / "m.toml", 0
    for old in ("1.5", "128", "64", "= 8", "100", "16"):
        path.write_text(BOARD.replace(old, f"= {number}" if old == "= 8" else number, 1))
        count += 1
        if tried(memory, path):
            tried(lambda: rb.plan(rb.Problem(64, 64, 16), memory=path))
            tried(lambda: sweep.run({"n": 64, "d": 8, "memory": str(path)}, jobs=1))
            tried(lambda: pebble.hierarchy(str(path)))
    assert count == 6


def test_damaged_memories(tmp_path):
    draw, path, results = random.Random(2), tmp_path / "m.toml", []
    for _ in range(600):
        path.write_bytes(damaged(BOARD.encode(), draw))
        results.append(tried(memory, path))
    assert len(results) == 600
    assert any(results)


def test_configs(tmp_path):
    """Configs with values replaced, and bytes damaged."""
    draw, path, results = random.Random(3), tmp_path / "config.json", []
    for _ in range(800):
        config = mutated(mutated(CONFIG, draw), draw) if draw.random() < 0.5 else mutated(CONFIG, draw)
        path.write_text(json.dumps(config))
        results.append(tried(models.model, path))
        path.write_bytes(damaged(json.dumps(CONFIG).encode(), draw))
        results.append(tried(models.model, path))
    assert len(results) == 1600
    assert any(results)


def test_rows_of_sweeps(tmp_path, expected):
    draw, results = random.Random(4), []
    for suffix in (".csv", ".jsonl", ".parquet"):
        path = tmp_path / f"r{suffix}"
        sweep.write(expected[:3], path)
        content = path.read_bytes()
        for _ in range(200):
            path.write_bytes(damaged(content, draw))
            results.append(tried(sweep.read, path))
    assert len(results) == 600


def test_edges(tmp_path):
    draw, path, results = random.Random(5), tmp_path / "edges.txt", []
    for _ in range(300):
        path.write_bytes(damaged(b"a b\nb c\na c\n# end\nlonely\n", draw))
        results.append(tried(pebble.graph_named, str(path)))
    assert len(results) == 300
    assert any(results)


READERS = {
    "memory": (".toml", memory),
    "sweep of a memory": (".toml", lambda path: sweep.make_sweep({"n": 64, "d": 8, "memory": str(path)})),
    "model": (".json", models.model),
    "game": (".jsonl", pebble.read_game),
    "graph": (".jsonl", lambda path: pebble.graph_named(str(path))),
    "edges": (".txt", lambda path: pebble.graph_named(str(path))),
    "csv": (".csv", sweep.read),
    "jsonl": (".jsonl", sweep.read),
    "parquet": (".parquet", sweep.read),
    "output": (".csv", lambda path: sweep.run(SMALL, output=path, jobs=1)),
}
CONTENTS = {
    "empty": b"",
    "zeros": bytes(5000),
    "not UTF-8": b"\xff\xfe\x80abc\n",
    "UTF-16": "[a]\nb = 1".encode("utf-16"),
    "lists": b"a = " + b"[" * MAX_DEPTH,
    "closed lists": b"a = " + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    "tables": b"a = " + b"{a=" * MAX_DEPTH,
    "a deep key": b".".join([b"a"] * 2000) + b" = 1",
    "JSON lists": b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    "JSON objects": b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
    "a long number": b"9" * 10_000,
    "a number of TOML": b"a = " + b"9" * 10_000,
    "null": b"null",
    "a long line": b"a" * 10**6,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_strange_contents(reader, tmp_path):
    suffix, read = reader
    count = 0
    for content in CONTENTS.values():
        path = tmp_path / f"file{suffix}"
        path.write_bytes(content)
        tried(read, path)
        count += 1
    assert count == len(CONTENTS)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_strange_names(reader, tmp_path):
    """A folder, a missing file, a file as a folder, a name of 300 characters, one with a null byte, a loop of links."""
    suffix, read = reader
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
    names = [
        f"folder{suffix}",
        f"missing{suffix}",
        f"file/x{suffix}",
        "a" * 300 + suffix,
        f"a\0{suffix}",
        f"loop{suffix}",
    ]
    for name in names:
        if name != f"missing{suffix}" or read is not READERS["output"][1]:
            with pytest.raises(RedblueError):
                read(tmp_path / name)
    assert len(names) == 6


def test_the_catalogue_itself_is_valid():
    """The mutations above begin with valid files."""
    assert len(read_memories(CATALOGUE)) > 50
