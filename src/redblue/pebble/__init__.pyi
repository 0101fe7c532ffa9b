"""The red-blue pebble game: graphs, rules, a referee, exact and heuristic solvers, lower bounds, files, drawings."""

from .bounds import GraphBound, lower_bound, lower_bounds
from .constructors import (
    attention_backward_graph,
    attention_graph,
    chain_graph,
    diamond_graph,
    fft_graph,
    matmul_graph,
    random_graph,
    stencil_graph,
    tree_graph,
)
from .drawing.player import render, strip, write_game
from .game_files import Saved, read_game, save_game
from .graph import Graph, GraphError, from_edges, from_networkx
from .heuristics import HeuristicGame, heuristic
from .moves import COMPUTE, DELETE, LOAD, STORE, Game, Move
from .names import graph_named
from .referee import IllegalMove, Unfinished, Verdict, check
from .rules import Further, Rules, hierarchy, least_red
from .search import Progress, Solution
from .solver import solve

__all__ = [
    "COMPUTE",
    "DELETE",
    "LOAD",
    "STORE",
    "Further",
    "Game",
    "Graph",
    "GraphBound",
    "GraphError",
    "HeuristicGame",
    "IllegalMove",
    "Move",
    "Progress",
    "Rules",
    "Saved",
    "Solution",
    "Unfinished",
    "Verdict",
    "attention_backward_graph",
    "attention_graph",
    "chain_graph",
    "check",
    "diamond_graph",
    "fft_graph",
    "from_edges",
    "from_networkx",
    "graph_named",
    "heuristic",
    "hierarchy",
    "least_red",
    "lower_bound",
    "lower_bounds",
    "matmul_graph",
    "random_graph",
    "read_game",
    "render",
    "save_game",
    "solve",
    "stencil_graph",
    "strip",
    "tree_graph",
    "write_game",
]
