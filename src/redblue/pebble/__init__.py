"""The red-blue pebble game: graphs, rules, a referee, exact and heuristic solvers, lower bounds, files, drawings."""

import lazy_loader

# __init__.pyi lists the public names. The first use of a name imports its module: the machines need only the graphs.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
