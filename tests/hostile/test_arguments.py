"""Every public function accepts a value for each argument or raises RedblueError, in bounded time."""

import inspect
import math
import signal
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

import redblue as rb
from redblue import bounds
from redblue.catalogue import clusters
from redblue.lab import counts
from redblue.schedules.network.balance import balance, best_placement
from redblue.studies import sweep

SECONDS = 20  # far more than any of these calls takes

WRONG = {
    "None": None,
    "text": "x",
    "bytes": b"x",
    "a null byte": "\0",
    "a fraction": 1.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "a complex number": 1 + 2j,
    "-1": -1,
    "0": 0,
    "True": True,
    "2^70": 2**70,
    "10^4000": 10**4000,  # Python prints at most 4300 digits
    "a list": [],
    "a nested list": [[[]]],
    "a tuple": (),
    "a dict": {},
    "an array": np.zeros(3),
    "an array of objects": np.array([None, "x"], dtype=object),
    "an object": object(),
    "a class": int,
    "a function": len,
}


@dataclass
class Call:
    """A public function and arguments with which it works."""

    function: object
    arguments: dict


PROBLEM = rb.Problem(8, 8, 4)
GRAPH = rb.pebble.chain_graph(3)
GAME = {"graph": GRAPH, "moves": rb.pebble.solve(GRAPH, 2).moves, "red": 2}
COUNTED = {"schedule": "flash", "problem": PROBLEM, "words": 64}
LEVEL = rb.CacheLevel("L1", 4096, 64, 8)
SWEEP = sweep.make_sweep({"n": 64, "d": 8, "words": 256})
ROWS = sweep.run(SWEEP, jobs=1)
Q = np.ones((2, 3, 4), np.float32)
OUT, LSE = rb.attention(Q, Q, Q, return_lse=True)
PAGES = np.ones((5, 2, 1, 4), np.float32)
PAGED = {"k_pages": PAGES, "v_pages": PAGES.copy(), "page_table": [[0, 1], [2, 3]], "lengths_k": [3, 2]}


def with_positions(queries, keys, n_q=None, n_k=None, first_head=0, heads=None):
    """A call with these positions, which the call checks."""
    return rb.attention(Q, Q, Q, positions=rb.Positions(queries, keys, n_q, n_k, first_head, heads))


def calls():
    """Return the calls by name. Arguments that are file names are left out if any text is a valid name."""
    yield "Problem", Call(rb.Problem, {"n_q": 8, "n_k": 8, "d": 4})
    yield "PagedProblem", Call(rb.PagedProblem, {"queries": [1, 2], "keys": [5, 8], "page": 4, "d": 4})
    yield "PagedProblem.of", Call(rb.PagedProblem.of, {"problem": PROBLEM, "page": 4})
    yield "CacheLevel", Call(rb.CacheLevel, {"name": "L1", "capacity_bytes": 4096, "line_bytes": 64, "ways": 8})
    yield "attention", Call(rb.attention, {"q": Q, "k": Q, "v": Q})
    yield (
        "attention_backward",
        Call(rb.attention_backward, {"dout": OUT, "q": Q, "k": Q, "v": Q, "out": OUT, "lse": LSE}),
    )
    yield "Positions", Call(with_positions, {"queries": [0, 1, 2], "keys": [0, 1, 2]})
    yield "attention_varlen", Call(rb.attention_varlen, {"q": Q, "k": Q, "v": Q, "cu_seqlens_q": [0, 2]})
    yield "attention_paged", Call(rb.attention_paged, {"q": Q[:, :1, None], **PAGED})
    yield "append_paged", Call(rb.append_paged, {"k": Q[:, :1, None], "v": Q[:, :1, None], **PAGED})
    yield "merge_attention", Call(rb.merge_attention, {"out_a": OUT, "lse_a": LSE, "out_b": OUT, "lse_b": LSE})
    yield "scaled_dot_product_attention", Call(rb.scaled_dot_product_attention, {"query": Q, "key": Q, "value": Q})
    yield "flex_attention", Call(rb.flex_attention, {"query": Q, "key": Q, "value": Q})
    yield "count", Call(rb.count, COUNTED)
    yield "counts.run", Call(counts.run, COUNTED)
    yield "counts.check", Call(counts.check, COUNTED)
    yield "trace", Call(rb.trace, COUNTED)
    yield "simulate", Call(rb.simulate, {"schedule": "flash", "problem": PROBLEM, "caches": [LEVEL], "words": 64})
    yield "plan", Call(rb.plan, {"problem": PROBLEM, "memory": "rtx-4090"})
    yield "memory", Call(rb.memory, {"name": "rtx-4090"})
    yield "model", Call(rb.model, {"name_or_path": "llama-3-8b"})
    yield "list_schedules", Call(rb.list_schedules, {})
    yield "lower_bound", Call(rb.lower_bound, {"problem": PROBLEM, "words": 64})
    yield "lower_bounds", Call(rb.lower_bounds, {"problem": PROBLEM, "words": 64})
    yield "network_bounds", Call(bounds.network_bounds, {"problem": PROBLEM, "world_size": 2, "words": 128})
    yield "network_bound", Call(bounds.network_bound, {"problem": PROBLEM, "world_size": 2})
    yield "balance", Call(balance, {"mask": rb.Mask.causal(), "n": 8, "placement": "zigzag", "world_size": 2})
    yield "best_placement", Call(best_placement, {"mask": rb.Mask.causal(), "n": 8, "world_size": 2})
    yield "plan on a cluster", Call(rb.plan, {"problem": PROBLEM, "memory": "2x t4 over pcie-4-x16"})
    yield "cluster", Call(clusters.cluster, {"text": "2x t4 over pcie-4-x16"})
    yield "link", Call(clusters.link, {"name": "nvlink-4"})
    yield "measure", Call(rb.measure, {"problem": PROBLEM, "words": 64, "using": "probe"})
    for name, sizes in {
        "attention_graph": {"n": 2, "d": 1},
        "attention_backward_graph": {"n": 2, "d": 1},
        "chain_graph": {"length": 3},
        "diamond_graph": {"rows": 2, "cols": 2},
        "fft_graph": {"points": 4},
        "matmul_graph": {"m": 2, "k": 2, "n": 2},
        "random_graph": {"seed": 1, "nodes": 6},
        "stencil_graph": {"points": 3, "steps": 2},
        "tree_graph": {"arity": 2, "depth": 2},
        "from_edges": {"edges": [(0, 1)]},
        "from_networkx": {"graph": None},
        "graph_named": {"text": "chain:3"},
        "Graph": {"labels": ("a",), "starts": [0, 0], "parents": []},
        "Rules": {},
        "Further": {"words": 3},
        "Move": {"kind": 0, "node": 0},
        "check": GAME,
        "render": GAME,
        "strip": GAME,
        "heuristic": {"graph": GRAPH, "red": 2, "tries": 1},
        "hierarchy": {"memory": "rtx-4090", "bytes_per_word": 2},
        "least_red": {"graph": GRAPH},
        "lower_bound": {"graph": GRAPH, "red": 2},
        "lower_bounds": {"graph": GRAPH, "red": 2},
        "solve": {"graph": GRAPH, "red": 2},
    }.items():
        yield f"pebble.{name}", Call(getattr(rb.pebble, name), sizes)
    yield "pebble.read_game", Call(rb.pebble.read_game, {"path": "nowhere.jsonl"})
    yield "sweep.make_sweep", Call(sweep.make_sweep, {"values": {"n": 64, "d": 8, "words": 256}})
    yield "sweep.figure", Call(sweep.figure, {"sweep": SWEEP, "rows": ROWS})
    yield "sweep.read", Call(sweep.read, {"path": "nowhere.csv"})


CALLS = dict(calls())
# Public names that are results, errors or constants, or that take only files, callables or masks; these have their own
# hostile tests
ELSEWHERE = {
    *("Mask", "Bound", "Count", "Measurement", "Memory", "Model", "Plan", "Simulation", "Traced", "pebble"),
    *("enable_flash_ops", "enable_sdpa", "flash_ops", "sdpa", "register_ops"),
    *("list_memories", "list_models", "measure_callable", "this_machine"),
    *("register_schedule", "unregister_schedule"),  # tests/lab/test_registration.py
    "__version__",
    *("COMPUTE", "DELETE", "LOAD", "STORE", "Game", "GraphBound", "HeuristicGame", "Progress", "Saved", "Solution"),
    "Verdict",
    *("save_game", "write_game", "COLUMNS", "GRAMMAR", "Axis", "Row", "Sweep", "draw", "write"),
}


@contextmanager
def limit(seconds):
    """Raise TimeoutError inside the block after this time."""

    def stop(signum, frame):
        raise TimeoutError(f"the call takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_no_public_name_is_forgotten():
    public = [*rb.__all__, *rb.pebble.__all__, *sweep.__all__]
    tested = {name.rpartition(".")[2] for name in CALLS}
    errors = {name for room in (rb, rb.pebble) for name in room.__all__ if is_error(getattr(room, name))}
    assert set(public) - tested - errors == ELSEWHERE


def is_error(x):
    return inspect.isclass(x) and issubclass(x, Exception)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_wrong_values_raise_redblue_errors(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, tried, wrong = CALLS[name], 0, []
    signature = inspect.signature(call.function)
    for parameter in signature.parameters:
        for label, value in WRONG.items():
            tried += 1
            try:
                with limit(SECONDS):
                    call.function(**{**call.arguments, parameter: value})
            except rb.RedblueError:
                pass
            except Exception as error:
                wrong.append(f"{parameter}={label}: {type(error).__name__}: {str(error)[:150]}")
    print(f"{tried} inputs")
    assert wrong == []
    assert tried == len(signature.parameters) * len(WRONG) > 0
