"""The options that commands share: their types, and the functions that parse their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from redblue import schedules
from redblue.base.dtypes import ANY_DTYPE, DEFAULT_DTYPE
from redblue.base.errors import RedblueError
from redblue.base.integers import parse_size
from redblue.base.text import quoted
from redblue.catalogue.clusters import Cluster, cluster, is_cluster
from redblue.catalogue.memories import THIS_MACHINE, Memory, list_memories, memory
from redblue.catalogue.models import list_models
from redblue.masks import Mask
from redblue.masks.names import parse
from redblue.paged_problem import AnyProblem, PagedProblem
from redblue.problem import Problem


def size(flag: str, help: str, unit: str = "") -> Any:
    """Declare an option that takes a size, such as 4096, 4K or 1e6."""

    def parse(value: str | int) -> int:
        try:
            return value if isinstance(value, int) else parse_size("a size", value, unit)
        except RedblueError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(flag, metavar="SIZE", parser=parse, help=help)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
N = Annotated[int | None, size("--n", help="Sequence length (n_q = n_k), such as 4096, 4Ki or 1e5.")]
ModelN = Annotated[int | None, size("--n", help="Sequence length; the model's own, up to 4096, if left out.")]
NQ = Annotated[int | None, size("--n-q", help="Number of queries, if not --n.")]
NK = Annotated[int | None, size("--n-k", help="Number of keys, if not --n.")]
D = Annotated[int | None, size("--d", help="Head dimension of queries and keys.")]
DV = Annotated[int | None, size("--d-v", help="Head dimension of values; --d if left out.")]
Batch = Annotated[int, size("--batch", help="Batch size.")]
Heads = Annotated[int, size("--heads", help="Query heads.")]
KvHeads = Annotated[int | None, size("--kv-heads", help="Key/value heads; --heads if left out.")]
Dtype = Annotated[str | None, typer.Option(help=f"{ANY_DTYPE}.")]
MaskText = Annotated[
    str,
    typer.Option(
        "--mask",
        help="full, causal, causal-bottom-right, window:LEFT[,RIGHT], blocks:FILE.npy,BQ[,BK] (a boolean array, True "
        "where a block of BQ queries attends a block of BK keys), or any that redblue mask --help lists.",
    ),
]
Direction = Annotated[str, typer.Option(help="forward, backward or gradient_x.")]
Page = Annotated[
    int | None, size("--page", help="Keys in a page: the batch becomes sequences whose keys lie in pages (forward).")
]
Prefix = Annotated[
    int | None,
    size("--prefix", help="With --page: number of first keys that all sequences share; full pages are stored once."),
]
VInK = Annotated[
    bool,
    typer.Option("--v-in-k", help="With --page: V is the first --d-v features of K, as in MLA.", show_default=False),
]
Words = Annotated[int | None, size("--words", help="Capacity of the cache, in words (array elements).")]


def schedule_names(incomplete: str) -> list[str]:
    """The names of schedules that begin with `incomplete`, for the shell's completion."""
    return [name for name in schedules.list_schedules() if name.startswith(incomplete)]


def memory_names(incomplete: str) -> list[str]:
    """The names of machines that begin with `incomplete`, for the shell's completion."""
    return [name for name in (*list_memories(), THIS_MACHINE) if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """The names of models that begin with `incomplete`, for the shell's completion."""
    return [name for name in list_models() if name.startswith(incomplete)]


Memories = Annotated[
    list[str] | None,
    typer.Option(
        "--memory",
        "-m",
        help="A machine of the catalogue, this-machine, a TOML file, or a cluster (8x NAME over LINK); repeatable.",
        autocompletion=memory_names,
    ),
]
ModelName = Annotated[str | None, typer.Argument(help="Catalogue name or config.json.", autocompletion=model_names)]


def known_schedule(name: str | None) -> str | None:
    """Return the name of a schedule, or None, unchanged. Raises UnknownName before other arguments are checked."""
    return None if name is None else schedules.get(name).name


def parse_mask(text: str) -> Mask:
    """Make the mask of a name on the command line. Raises RedblueError, which lists the names."""
    return parse(text)


def find_memories(names: Sequence[str]) -> list[Memory]:
    """Look up machines by name. this-machine is followed by its CUDA devices."""
    machines = [memory(name) for name in names]
    return [device for machine in machines for device in (machine, *machine.devices)]


def find_machines(names: Sequence[str]) -> list[Memory | Cluster]:
    """Look up machines and clusters by name."""
    return [machine for name in names for machine in ([cluster(name)] if is_cluster(name) else find_memories([name]))]


def parse_tiles(text: str | None) -> dict[str, int] | None:
    """Read tile edges such as "rows=64,cols=16". Raises RedblueError."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    for edge, _, length in pairs:
        if not edge.strip() or not length.strip():
            raise RedblueError(f"tiles must be edges with lengths, such as rows=64,cols=16; got {quoted(text)}")
    if len({edge.strip() for edge, _, _ in pairs}) < len(pairs):
        raise RedblueError(f"each tile edge may be given once, got {quoted(text)}")
    return {edge.strip(): parse_size(edge.strip(), length) for edge, _, length in pairs}


def make_problem(
    n: N = None,
    n_q: NQ = None,
    n_k: NK = None,
    d: D = None,
    d_v: DV = None,
    batch: Batch = 1,
    heads: Heads = 1,
    kv_heads: KvHeads = None,
    dtype: Dtype = None,
    mask: MaskText = "full",
    direction: Direction = "forward",
) -> Problem:
    """Make a problem from the command line's options. Raises RedblueError for missing or invalid sizes."""
    n_q, n_k = (n if n_q is None else n_q), (n if n_k is None else n_k)
    missing = [name for name, value in (("--n or --n-q", n_q), ("--n or --n-k", n_k), ("--d", d)) if value is None]
    if n_q is None or n_k is None or d is None:
        raise RedblueError(f"the problem needs its sizes: {', '.join(missing)} not given (example: --n 4096 --d 128)")
    d_v, kv_heads = (d if d_v is None else d_v), (heads if kv_heads is None else kv_heads)
    return Problem(n_q, n_k, d, d_v, batch, heads, kv_heads, dtype or DEFAULT_DTYPE, parse_mask(mask), direction)


def in_pages(problem: Problem, page: Page = None, prefix: Prefix = None, v_in_k: VInK = False) -> AnyProblem:
    """Put the keys of a problem into pages if there is a page size. Raises RedblueError for options without one."""
    if page is not None:
        return PagedProblem.of(problem, page, prefix or 0, v_in_k)
    flags = [flag for flag, value in (("--prefix", prefix is not None), ("--v-in-k", v_in_k)) if value]
    if flags:
        raise RedblueError(f"{flags[0]} is for keys in pages: give --page, too (example: --page 16)")
    return problem


def with_any_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Do the same as `with_problem`, with the options of `in_pages` in addition: keys may lie in pages."""
    options = [p for p in inspect.signature(in_pages, eval_str=True).parameters.values() if p.name != "problem"]

    @functools.wraps(command)
    def run(problem: Problem, **arguments: Any) -> None:
        of_pages = {p.name: arguments.pop(p.name) for p in options}
        command(in_pages(problem, **of_pages), **arguments)

    own = inspect.signature(command, eval_str=True).parameters.values()
    return with_problem(with_parameters(run, [*own, *options]))


def with_problem(command: Callable[..., None], dtype: str | None = None) -> Callable[..., None]:
    """Add the options of `make_problem` to a command, and call it with the problem made from them.

    dtype: the number type if --dtype is left out; None stands for the default of `make_problem`.
    """
    options = inspect.signature(make_problem, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        of_problem: dict[str, Any] = {name: arguments.pop(name) for name in options}
        of_problem["dtype"] = of_problem["dtype"] or dtype
        command(make_problem(**of_problem), **arguments)

    return with_parameters(run, [p for p in (*own.values(), *options.values()) if p.name != "problem"])


def with_parameters(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Declare these parameters, as keywords, to the parser of the command line; return the command."""
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in named}
    return command
