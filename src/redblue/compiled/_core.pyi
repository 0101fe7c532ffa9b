"""The compiled core: instruction sets, and what this machine measurably does with them; caches that hold lines."""

from collections.abc import Callable, Sequence

import numpy as np

class Isa:
    """One instruction set that redblue has code for."""

    @property
    def name(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU and its operating system can run it."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register."""

    @property
    def vector_registers(self) -> int:
        """Vector registers that a program may name."""

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 pairs into fp32 sums."""

    def lanes(self, number: int) -> int:
        """Queries that the attention kernel of a number type (redblue.base.dtypes.DTYPE_CODES) computes at once."""

    def packed_bytes(self, number: int) -> int:
        """Bytes of a number of that type as the kernel's packed panels hold it."""

def list_isas() -> list[Isa]:
    """Every instruction set of this build, best first; the last one, "portable", runs anywhere."""

def choose_isa(isa: str = "") -> Isa:
    """The instruction set of that name; "" takes the one that REDBLUE_ISA names, else the best that this CPU can run.

    Raises ValueError, listing the names, for one that is unknown or that this CPU lacks.
    """

class Array:
    """An array: its address and its strides, in elements, of (lead..., heads, rows, columns).

    Raises ValueError for fewer strides than 3, or more than the core takes.
    """

    def __init__(self, address: int, strides: tuple[int, ...]) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def strides(self) -> tuple[int, ...]: ...

class Sizes:
    """The sizes of a call; see redblue.kernels.cpu.call.Sizes."""

    def __init__(
        self, lead: Sequence[int], kv_heads: int, group: int, n_q: int, n_k: int, d: int, d_v: int
    ) -> None: ...

class SpillTiles:
    """Tiles of a schedule that writes P to memory; see redblue.kernels.cpu.plan.SpillTile."""

    def __init__(
        self,
        stays: bool,
        rows: int,
        cols: int,
        depth: int,
        out_rows: int,
        out_cols: int,
        dk_rows: int,
        dk_cols: int,
        dv_rows: int,
        dv_cols: int,
        chunk: int,
    ) -> None: ...

class Tiles:
    """Rows (queries, stacked) and columns (keys) of a tile, and how forward and backward are split.

    pieces: parts that forward cuts the keys into. dq_cols: keys that a separate pass for dQ takes at once, 0 for none.
    spilled: tiles of a schedule that writes P to memory. Raises ValueError for an edge below 1.
    """

    def __init__(
        self, rows: int = 1, cols: int = 1, pieces: int = 1, dq_cols: int = 0, spilled: SpillTiles | None = None
    ) -> None: ...

class Pattern:
    """A lowered mask; see redblue.kernels.cpu.call.Pattern. The first three are addresses."""

    def __init__(
        self,
        starts: int = 0,
        runs: int = 0,
        bits: int = 0,
        planes: Array | None = None,
        panel: int = 1,
        panels: int = 0,
        planes_count: int = 1,
        scattered: bool = False,
    ) -> None: ...

class Edges:
    """Attending pairs as lists; see redblue.kernels.cpu.call.Edges. All four are addresses."""

    def __init__(self, query_starts: int, keys: int, key_starts: int, queries: int) -> None: ...

class Call:
    """The arguments of one pass; see redblue.kernels.cpu.call.forward and backward.

    Query i attends keys i + first .. i + end - 1. Only the number of strides is checked: the core reads and writes at
    these addresses. number: redblue.base.dtypes.DTYPE_CODES. options: the fields of `Options` in
    cpp/attention/options.h; TypeError for any other name.
    """

    def __init__(
        self,
        number: int,
        sizes: Sizes,
        tiles: Tiles,
        threads: int,
        first: int,
        end: int,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        lse: Array,
        dout: Array | None = None,
        dq: Array | None = None,
        dk: Array | None = None,
        dv: Array | None = None,
        delta: Array | None = None,
        dlse: Array | None = None,
        pattern: Pattern | None = None,
        by_query: Pattern | None = None,
        edges: Edges | None = None,
        dbias: Array | None = None,
        **options: float | Array | None,
    ) -> None: ...

class Sequences:
    """The sequences of a paged call. Three addresses of int64: cumulative queries, keys, and `most` pages of each.

    page: keys of a page. left, right: keys that a query attends before and after its own, counted from the last query
    and key; -1: all. tree: the address of booleans (queries, newest), 0 for none. prefix: pages that all sequences
    share, -1 if the core shall look for shared ones. Raises ValueError for pages of no key.
    """

    def __init__(
        self,
        count: int,
        starts: int,
        lengths: int,
        table: int,
        most: int,
        page: int,
        left: int = -1,
        right: int = 0,
        tree: int = 0,
        newest: int = 0,
        prefix: int = -1,
    ) -> None: ...

class PagedCall:
    """The arguments of attention on paged keys; see redblue.kernels.cpu.paged.

    sizes: of one sequence; n_q and n_k are not read. q, out, lse: (heads, queries, width); k, v: (pages, heads, rows,
    width). v_in_k: the column of K at which V begins, -1 if V is not a slice of K. options: as in Call, with one
    leading dimension of sequences.
    """

    def __init__(
        self,
        number: int,
        sizes: Sizes,
        tiles: Tiles,
        threads: int,
        sequences: Sequences,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        lse: Array,
        v_in_k: int = -1,
        **options: float | Array | None,
    ) -> None: ...

class RowCopy:
    """New keys or values to be written into a cache: row i goes to row rows[i] of page pages[i].

    pages, rows: addresses of `count` int64, of places within the cache. A row has heads x width numbers of `size`
    bytes. Strides in numbers, of (row, head, column) of the source and of (page, row, head, column) of the cache.
    """

    def __init__(
        self,
        pages: int,
        rows: int,
        count: int,
        heads: int,
        width: int,
        size: int,
        source_strides: tuple[int, ...],
        cache_strides: tuple[int, ...],
    ) -> None: ...
    def run(self, source: int, cache: int, threads: int) -> None:
        """Copy the rows from one address to the other."""

def attention_paged(isa: Isa, call: PagedCall) -> tuple[int, int]:
    """Write out and lse. Returns the words read and written between tiles and arrays, entries of tables included."""

def attention_paged_on(
    isa: Isa, call: PagedCall, threads: int, q: int, k: int, v: int, out: int, lse: int
) -> tuple[int, int]:
    """As attention_paged, with other threads and on arrays at these addresses, of the call's shapes and strides.

    lse: 0 if it is not wanted.
    """

def shared_nodes(call: PagedCall) -> list[tuple[int, int, list[int]]]:
    """Keys that are read together: (first key, stop key, sequences), those of a sequence in ascending order."""

def same_bytes(a: int, b: int, bytes: int) -> bool:
    """Whether the memory at two addresses is equal."""

def attention_forward(isa: Isa, call: Call) -> tuple[int, int]:
    """Write out and lse. Returns the words read and written between tiles and arrays."""

def attention_backward(isa: Isa, call: Call) -> tuple[int, int]:
    """Write dq, dk, dv, delta and, if given, dbias. Returns the words read and written between tiles and arrays."""

def list_tasks(isa: Isa, call: Call, backward: bool) -> np.ndarray:
    """The tasks of `flash` forward, or of `flash_onepass` backward, in the order in which threads take them.

    int64, four numbers for each task: the stream, the first stacked row (forward) or key (backward), their count, and
    the piece of the keys (forward). Reads no array.
    """

def use_openmp_of(path: str) -> bool:
    """Compute on the OpenMP threads of a loaded library from now on; an empty path: on redblue's own threads.

    Returns whether OpenMP's are used: False if the library has none that redblue can use.
    """

def by_key(query_starts: np.ndarray, keys: np.ndarray, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists by query turned into lists by key: int64 (n_k + 1) starts and the int32 queries of each key, ascending.

    query_starts: int64 (n_q + 1). keys: int32, each from 0 to n_k - 1, which nobody checks here.
    """

def lower_array(
    attends: np.ndarray, group: int, panel: int, least: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """A boolean mask in the form that kernels take: (runs of each panel, runs, words, attending pairs).

    attends: uint8 (n_q, n_k), 0 or 1, dense along keys. group: rows of a query. panel: 1 to 64 rows. runs: 3 numbers
    each, as in redblue.masks.lowered. least: shorter full runs beside keys with words get words. Raises ValueError for
    more than `most` words.
    """

def exp(x: np.ndarray, isa: Isa) -> None:
    """Each number of a contiguous float32 or float64 array becomes its exponential, as the kernels compute it."""

def exp2(x: np.ndarray, isa: Isa) -> None:
    """The same for powers of two."""

def multiply_add(a: float, b: float, c: float, dtype: str = "float32", isa: str = "") -> float:
    """a * b + c as the chains of `multiply_add_rate` compute it (bfloat16: a and b are rounded to it, c is fp32)."""

def multiply_add_rate(dtype: str = "float32", threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Floating-point operations per second of independent multiply-adds (two operations each).

    On `threads` threads at once, the median of repetitions that take about `seconds` together.
    dtype: "float32", or "bfloat16" (products; sums in fp32).
    """

def read_rate(bytes_per_thread: int, threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Bytes per second that `threads` threads read at once, all together, each over and over from a buffer of its own.

    The median of repetitions that take about `seconds` together; bytes_per_thread is rounded down to 1024.
    """

class LineCounts:
    """What one level of a cache did, in lines; see redblue.machine.hierarchy."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def fills(self) -> int: ...
    @property
    def write_backs(self) -> int: ...
    @property
    def dead_write_backs(self) -> int: ...

class CacheHierarchy:
    """Levels of least-recently-used caches, given as (sets, ways), nearest first; see redblue.machine.hierarchy.

    Lines are numbered from 0 to 2^28 - 1. Raises ValueError for others, and for a shape with nothing in it.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        line_words: int,
        fetch_on_write: bool = False,
        records: bool = False,
    ) -> None: ...
    def play(self, lines: np.ndarray, kinds: np.ndarray) -> None:
        """Access int64 lines; int8 kinds: 0 read, 1 write, 2 overwrite the whole line, 3 discard (no access)."""

    def block(self, base: int, rows: int, stride: int, words: int, writes: bool) -> None:
        """Access `rows` rows of `words` words that lie `stride` words apart, row by row, from word `base` on."""

    def discard(self, first: int, lines: int) -> None:
        """Say that nothing will read the content of these lines until they are written again."""

    def flush(self) -> None:
        """Write every dirty line back."""

    def counts(self) -> list[LineCounts]:
        """What each level did so far, nearest first."""

    def recorded(self) -> tuple[np.ndarray, np.ndarray]:
        """The accesses so far, as `play` takes them, if `records` was asked for; else nothing."""

def belady(lines: np.ndarray, kinds: np.ndarray, capacity: int, fetch_on_write: bool = False) -> LineCounts:
    """Belady's MIN on one fully associative level of `capacity` lines; see redblue.machine.hierarchy."""

class PebbleBoard:
    """What the pebble game is played on, and by which rules; see redblue.pebble.rules.

    starts, parents: the graph in compressed rows (int64). words: of each node. capacities: of each level but slow
    memory, nearest first. blue, free: per node (uint8), whether it starts in slow memory, whether a source is computed.
    Raises ValueError for arrays that do not fit together.
    """

    def __init__(
        self,
        starts: np.ndarray,
        parents: np.ndarray,
        words: np.ndarray,
        capacities: np.ndarray,
        blue: np.ndarray,
        free: np.ndarray,
        once: bool = False,
        partial: bool = False,
        sliding: bool = False,
        keeps_sinks: bool = True,
    ) -> None: ...

def pebble_play(
    board: PebbleBoard, order: np.ndarray, recent: bool, ratio: float, recomputes: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds, nodes and parents of the moves of a game that computes nodes in that order; see redblue.pebble.heuristics.

    Raises ValueError for an order that is none of the board's graph, and where the red pebbles are too few for it.
    """

class PebbleReferee:
    """Plays the pebble game by the rules; see redblue.pebble.referee."""

    def __init__(self, board: PebbleBoard) -> None: ...
    def play(self, kinds: np.ndarray, nodes: np.ndarray, parents: np.ndarray, levels: np.ndarray) -> int:
        """How many moves were legal: all, or the number of the first that was not. The arrays are those of a Game."""

    @property
    def broken(self) -> int:
        """Which rule the last move broke, 0 for none: the number of its row in redblue.pebble.referee.BROKEN."""

    def have(self) -> np.ndarray:
        """Per node (uint8), bit l for a pebble of level l."""

    def marked_in(self) -> np.ndarray:
        """Per node, the marked edges into it; empty where the rules mark none."""

    @property
    def held(self) -> list[int]: ...
    @property
    def peak(self) -> list[int]: ...
    @property
    def loaded(self) -> list[int]: ...
    @property
    def stored(self) -> list[int]: ...
    @property
    def computes(self) -> int: ...

def search_pebbles(
    starts: np.ndarray,
    parents: np.ndarray,
    words: np.ndarray,
    blue: np.ndarray,
    red: int,
    costs: tuple[int, int, int],
    flags: tuple[bool, bool, bool, bool],
    seconds: float,
    bytes: int,
    beam: int,
    symmetries: int,
    keep_on: Callable[[int, int, int, int], bool],
) -> tuple[int, int, bool, int, np.ndarray, np.ndarray, np.ndarray]:
    """The cheapest pebble game; see redblue.pebble.solver.

    starts, parents, words: as PebbleReferee takes them. blue (uint8): per node whether it starts in slow memory. costs:
    of a word loaded, a word stored, a node computed (partial: an edge marked). flags: once, partial, sliding, whether
    sinks end blue. seconds: 0 for no limit. keep_on(cost, lower bound, states expanded, states stored) is asked some
    times per second, and stops the search by False; so does Ctrl-C.

    Returns (cost, lower bound, whether the cost is proved the least, states expanded, kinds, nodes, parents), the
    arrays being those of a Game; cost -1: no game was found. Raises ValueError for more than 128 nodes.
    """

def under_valgrind() -> bool:
    """Whether valgrind runs this process."""

def meter_arm(outputs: Sequence[tuple[int, int]], line_bytes: int) -> None:
    """Have callgrind count the next call of a kernel, or of meter_loop (cpp/meter/meter.h).

    outputs: (address, bytes) of what it writes, whose lines are touched afterwards. line_bytes: the cache's.
    """

def meter_start() -> None:
    """Empty callgrind's caches, and have it count from here on. Nothing where valgrind does not run."""

def meter_stop() -> None:
    """Have callgrind write down what it counted, touch what meter_arm named, write that down, and count no more."""

def meter_loop(name: str, to: int, other: int, third: int, count: int, step: int) -> None:
    """A loop over doubles whose traffic is known, on addresses that nobody checks.

    "copy": `count` of them from `other` to `to`. "strided": every `step`-th of `count` from `other`, twice.
    "product": `to` += `other` x `third`, all count x count, in tiles of step x step.
    """
