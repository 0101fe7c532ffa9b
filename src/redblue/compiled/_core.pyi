"""Types of the compiled core: attention kernels, rates of this machine, simulated caches, the pebble game, meters."""

from collections.abc import Callable, Sequence

import numpy as np

class Isa:
    """An instruction set for which redblue has kernels."""

    @property
    def name(self) -> str: ...
    @property
    def supported(self) -> bool:
        """Whether this CPU and its operating system can run the instruction set."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register."""

    @property
    def vector_registers(self) -> int:
        """Number of architectural vector registers."""

    @property
    def has_bfloat16(self) -> bool:
        """Whether the instruction set multiplies pairs of bfloat16 and adds the products in fp32."""

    def lanes(self, number: int) -> int:
        """Stacked rows that a kernel computes at once. number: a code of redblue.base.dtypes.DTYPE_CODES."""

    def packed_bytes(self, number: int) -> int:
        """Bytes of one number in a kernel's packed panels. number: a code of redblue.base.dtypes.DTYPE_CODES."""

def list_isas() -> list[Isa]:
    """Return all instruction sets of this build, the best first. The last, "portable", runs on every CPU."""

def choose_isa(isa: str = "") -> Isa:
    """Return the instruction set of the name `isa`.

    The name "" selects the instruction set that the environment variable REDBLUE_ISA names; without this variable, the
    best instruction set that this CPU can run. Raises ValueError, which lists the supported names, if the instruction
    set is unknown or this CPU lacks it.
    """

class Array:
    """An array (lead..., heads, rows, columns), given by its address and its strides.

    strides: in elements, one per dimension. Raises ValueError for fewer than 3 strides or more than 11.
    """

    def __init__(self, address: int, strides: tuple[int, ...]) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def strides(self) -> tuple[int, ...]: ...

class Sizes:
    """The sizes of a call. The fields are those of redblue.kernels.sizes.Sizes."""

    def __init__(
        self, lead: Sequence[int], kv_heads: int, group: int, n_q: int, n_k: int, d: int, d_v: int
    ) -> None: ...

class SpillTiles:
    """The tiles of a schedule that writes P to memory. The fields are those of redblue.kernels.cpu.plan.SpillTile.

    Raises ValueError if `rows` is below 1.
    """

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
    """The tiles of a call.

    rows, cols: stacked rows (queries) and keys of a tile. pieces: pieces into which forward splits the keys.
    dq_cols: keys of a tile in the separate pass for dQ; 0: backward has no separate pass for dQ. spilled: the tiles of
    a schedule that writes P to memory. Raises ValueError if `rows` or `cols` is below 1, or `dq_cols` below 0.
    """

    def __init__(
        self, rows: int = 1, cols: int = 1, pieces: int = 1, dq_cols: int = 0, spilled: SpillTiles | None = None
    ) -> None: ...

class Pattern:
    """A lowered mask. The fields are those of redblue.kernels.cpu.call.Pattern; starts, runs and bits are addresses."""

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
    """Lists of attending pairs. The fields are those of redblue.kernels.cpu.call.Edges; all are addresses."""

    def __init__(self, query_starts: int, keys: int, key_starts: int, queries: int) -> None: ...

class Call:
    """The arguments of one pass, forward or backward; see redblue.kernels.cpu.call.

    number: the number type, a code of redblue.base.dtypes.DTYPE_CODES. first, end: query i attends keys
    i + first .. i + end - 1. options: the fields of `Options` in cpp/attention/options.h. The core reads and writes at
    the given addresses without a check. Raises ValueError if an array has a wrong number of strides, and TypeError for
    an unknown option.
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
    """The sequences of a paged call.

    starts, lengths, table: addresses of int64 arrays. starts (count + 1): the packed queries of sequence b are
    starts[b] .. starts[b + 1] - 1. lengths (count): keys of each sequence. table (count, most): page numbers.
    page: keys of a page. left, right: keys that a query attends before and after its own position; -1: all of them. The
    position of a sequence's last query is its last key. tree: address of booleans (queries, newest), which say which of
    the `newest` last keys a query attends; 0: no tree. prefix: number of leading pages that all sequences share; -1:
    the core finds shared pages. Raises ValueError if `page` is below 1.
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

    sizes: the sizes of one sequence; n_q and n_k are not read. q, out, lse: (heads, packed queries, width). k, v:
    (pages, heads, rows of a page, width). v_in_k: the column of K at which V begins; -1: V is not a slice of K.
    options: the options of Call. Their arrays have one leading dimension, the sequences.
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
    """A copy of new keys or values into a cache: row i of the source goes to row rows[i] of page pages[i].

    pages, rows: addresses of `count` int64 each. A row consists of heads x width numbers of `size` bytes.
    source_strides: of (row, head, column). cache_strides: of (page, row, head, column). Strides are in numbers.
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
        """Copy the rows from the address `source` to the address `cache`."""

def attention_paged(isa: Isa, call: PagedCall) -> tuple[int, int]:
    """Compute the arrays `out` and `lse` of a paged call.

    Returns the words read and the words written between tiles and arrays. The words read include page-table entries.
    """

def attention_paged_on(
    isa: Isa, call: PagedCall, threads: int, q: int, k: int, v: int, out: int, lse: int
) -> tuple[int, int]:
    """Run attention_paged with another number of threads and on arrays at other addresses.

    The arrays have the shapes and strides of the call's arrays. lse: 0 if the caller needs no lse.
    """

class Node:
    """A run of keys of a paged call that one or several sequences read from the same pages."""

    @property
    def first(self) -> int:
        """The first key."""

    @property
    def stop(self) -> int:
        """The key after the last key."""

    @property
    def members(self) -> list[int]:
        """The sequences that read these keys, in ascending order."""

def shared_nodes(call: PagedCall) -> list[Node]:
    """Divide the keys of all sequences into nodes. The nodes of a sequence are in ascending order of their keys."""

def same_bytes(a: int, b: int, bytes: int) -> bool:
    """Whether `bytes` bytes at the addresses `a` and `b` are equal."""

def attention_forward(isa: Isa, call: Call) -> tuple[int, int]:
    """Compute `out` and `lse`. Returns the words read and the words written between tiles and arrays."""

def attention_backward(isa: Isa, call: Call) -> tuple[int, int]:
    """Compute dq, dk, dv and delta; also dbias if the call has this array.

    Returns the words read and the words written between tiles and arrays.
    """

def list_tasks(isa: Isa, call: Call, backward: bool) -> np.ndarray:
    """Return the tasks of `flash` forward or of `flash_onepass` backward, in the order in which threads take them.

    The result is a flat int64 array of four numbers per task: stream; first stacked row (forward) or first key
    (backward); number of rows or keys; piece of the keys (forward). The function reads none of the call's arrays.
    """

def use_openmp_of(path: str) -> bool:
    """Run all later calls on the OpenMP threads of a loaded library. An empty path selects redblue's own threads again.

    Returns whether OpenMP threads are used. The result is False if redblue cannot use the library's threads.
    """

def by_key(query_starts: np.ndarray, keys: np.ndarray, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Transpose lists of keys by query: return lists of queries by key.

    query_starts: int64 (n_q + 1). keys: int32, from 0 to n_k - 1; the function does not check this range. Returns
    int64 starts (n_k + 1) and int32 queries, which ascend within each key.
    """

def lower_array(
    attends: np.ndarray, group: int, panel: int, least: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Lower a boolean mask to the form that kernels take; see redblue.masks.lowered.

    attends: uint8 (n_q, n_k), 0 or 1, contiguous along keys. group: stacked rows per query. panel: rows of a panel, 1
    to 64. least: full runs of fewer than `least` keys get words if they touch a run with words. Returns the number of
    runs of each panel (int64), the runs (int64, three numbers each), the words (uint64), and the number of attending
    pairs. Raises ValueError if the mask needs more than `most` words.
    """

def exp(x: np.ndarray, isa: Isa) -> None:
    """Replace each x of a contiguous float32 or float64 array (n,) by e^x, with the arithmetic of the kernels."""

def exp2(x: np.ndarray, isa: Isa) -> None:
    """Replace each x of a contiguous float32 or float64 array (n,) by 2^x, with the arithmetic of the kernels."""

def multiply_add(a: float, b: float, c: float, dtype: str = "float32", isa: str = "") -> float:
    """Compute a * b + c with the instruction that `multiply_add_rate` measures.

    dtype: "float32", or "bfloat16", which rounds a and b to bfloat16 and adds c in fp32. isa: a name, as in
    choose_isa. Raises ValueError for another dtype, and for a dtype that the instruction set lacks.
    """

def multiply_add_rate(dtype: str = "float32", threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Measure the floating-point operations per second of independent multiply-adds. A multiply-add is two operations.

    dtype: "float32", or "bfloat16" for products of bfloat16 with sums in fp32. threads: threads that run at once.
    seconds: total time of the repetitions, whose median is returned. Raises ValueError as multiply_add does, and unless
    threads is 1 to 1024 and seconds is above 0 and at most 60.
    """

def read_rate(bytes_per_thread: int, threads: int = 1, seconds: float = 0.05, isa: str = "") -> float:
    """Measure the bytes per second that all threads together read. Each thread reads its own buffer repeatedly.

    bytes_per_thread: size of a buffer, rounded down to a multiple of 1024, at least 1024. seconds: total time of the
    repetitions, whose median is returned. Raises ValueError unless threads is 1 to 1024 and seconds is above 0 and at
    most 60.
    """

class LineCounts:
    """Counts of one cache level, in lines. The fields are those of redblue.machine.hierarchy.LevelTraffic."""

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

class CacheShape:
    """The number of sets of a cache level, and the lines (ways) of each set."""

    def __init__(self, sets: int, ways: int) -> None: ...

class CacheHierarchy:
    """A simulator of cache levels that evict the least recently used line; see redblue.machine.hierarchy.

    shapes: one per level, nearest first. line_words: words of a line. fetch_on_write: whether a write of a whole line
    that the nearest level does not hold reads the line first. records: whether the simulator records the accesses.
    Raises ValueError if a level has fewer than 1 set, fewer than 1 way or more than 2^28 lines, or if line_words is
    below 1. Line numbers are 0 to 2^28 - 1; methods raise ValueError for other numbers.
    """

    def __init__(
        self,
        shapes: Sequence[CacheShape],
        line_words: int,
        fetch_on_write: bool = False,
        records: bool = False,
    ) -> None: ...
    def play(self, lines: np.ndarray, kinds: np.ndarray) -> None:
        """Simulate a sequence of accesses.

        lines: line numbers (int64). kinds: one per access (int8): 0 read, 1 write of part of the line, 2 write of the
        whole line, 3 discard, which accesses nothing. Raises ValueError for arrays of different lengths and for other
        kinds.
        """

    def block(self, base: int, rows: int, stride: int, words: int, writes: bool) -> None:
        """Access a block of words row by row. Each row has `words` words; rows begin `stride` words apart.

        base: number of the word at which the first row begins. writes: whether the accesses are writes. A write of all
        words of a line is an access of kind 2.
        """

    def discard(self, first: int, lines: int) -> None:
        """Mark the content of lines first .. first + lines - 1 as dead: no read follows before the next write."""

    def flush(self) -> None:
        """Write all dirty lines back, level by level."""

    def counts(self) -> list[LineCounts]:
        """Return the counts of each level so far, nearest first."""

    def recorded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the recorded lines and kinds, the arguments of `play`. Both are empty without `records`."""

def belady(lines: np.ndarray, kinds: np.ndarray, capacity: int, fetch_on_write: bool = False) -> LineCounts:
    """Simulate one fully associative level of `capacity` lines with Belady's replacement.

    lines, kinds: the arguments of CacheHierarchy.play. fetch_on_write: as in CacheHierarchy. Raises ValueError as
    CacheHierarchy.play does, and if `capacity` is below 1.
    """

class PebbleBoard:
    """The graph and the rules of a pebble game; see redblue.pebble.rules.

    starts, parents: the parents of node v are parents[starts[v]] .. parents[starts[v + 1] - 1] (int64). words: words of
    each node (int64). capacities: words of each level except slow memory, nearest first (int64). blue: whether each
    node starts in slow memory (uint8). free: whether each node is a source that is computed, not loaded (uint8).
    once: a node may be computed only once. partial: partial computation, which marks one edge at a time. sliding: a
    parent's pebble may slide to the node. sinks_end_blue: every sink must be in slow memory at the end.
    Raises ValueError unless the arrays have one entry per node and 1 to 6 levels have a capacity.
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
        sinks_end_blue: bool = True,
    ) -> None: ...

def pebble_play(
    board: PebbleBoard, order: np.ndarray, recent: bool, ratio: float, recomputes: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play a game on two levels that computes the nodes in the given order; see redblue.pebble.heuristics.

    order: the nodes to compute, without repetition and with parents before children (int64). recent, ratio: the fields
    of redblue.pebble.heuristics.Eviction. recomputes: whether a computation may replace a load if all parents are red.
    Returns the kinds, nodes and parents of the moves, the arrays of a redblue.pebble.moves.Game. Raises ValueError if
    the order names an unknown node or has a child before its parent, if the red pebbles are too few for the order, and
    if the board has more than two levels.
    """

class PebbleReferee:
    """The referee of the pebble game: it plays moves by the rules of the board; see redblue.pebble.referee."""

    def __init__(self, board: PebbleBoard) -> None: ...
    def play(self, kinds: np.ndarray, nodes: np.ndarray, parents: np.ndarray, levels: np.ndarray) -> int:
        """Play further moves up to the first illegal move.

        The arguments are the arrays of a redblue.pebble.moves.Game. Returns the number of moves if all are legal,
        otherwise the index of the first illegal move. Raises ValueError for arrays of different lengths.
        """

    @property
    def broken(self) -> int:
        """The rule that the last move broke, a key of redblue.pebble.referee.BROKEN; 0: the move was legal."""

    def have(self) -> np.ndarray:
        """Return the pebbles of each node (uint8): bit l is set if the node has a pebble of level l."""

    def marked_in(self) -> np.ndarray:
        """Return the number of marked edges into each node (int64); empty if the rules neither mark edges nor slide."""

    @property
    def held(self) -> list[int]:
        """Words that each level holds now, except slow memory."""

    @property
    def peak(self) -> list[int]:
        """The largest number of words that each level has held, except slow memory."""

    @property
    def loaded(self) -> list[int]:
        """Words loaded across each boundary of levels, nearest first."""

    @property
    def stored(self) -> list[int]:
        """Words stored across each boundary of levels, nearest first."""

    @property
    def computes(self) -> int:
        """Number of computations; with partial computation, of marked edges."""

class PebbleCosts:
    """The costs of moves, in whole numbers.

    load, store: cost per word. compute: cost per computed node; with partial computation, per marked edge.
    """

    def __init__(self, load: int, store: int, compute: int) -> None: ...
    @property
    def load(self) -> int: ...
    @property
    def store(self) -> int: ...
    @property
    def compute(self) -> int: ...

class PebbleLimits:
    """The limits of a search.

    seconds: longest time; 0: no limit. bytes: most memory for states. beam: states per level of the beam search for a
    first game; 0: no beam search. symmetries: most symmetries of the graph that the search uses.
    """

    def __init__(self, seconds: float, bytes: int, beam: int, symmetries: int) -> None: ...

class PebbleProgress:
    """The progress of a search."""

    @property
    def cost(self) -> int:
        """Cost of the cheapest game so far; -1 before the first game."""

    @property
    def lower_bound(self) -> int:
        """Proved lower bound on the cost of every game."""

    @property
    def expanded(self) -> int:
        """Number of expanded states."""

    @property
    def stored(self) -> int:
        """Number of states in memory."""

class PebbleResult:
    """The result of a search. kinds, nodes and parents are arrays of a redblue.pebble.moves.Game."""

    @property
    def cost(self) -> int:
        """Cost of the game; -1 if the search found no game."""

    @property
    def lower_bound(self) -> int:
        """Proved lower bound on the cost of every game."""

    @property
    def expanded(self) -> int:
        """Number of expanded states."""

    @property
    def proved(self) -> bool:
        """Whether it is proved that no game is cheaper."""

    @property
    def kinds(self) -> np.ndarray:
        """Kind of each move (int8)."""

    @property
    def nodes(self) -> np.ndarray:
        """Node of each move (int64)."""

    @property
    def parents(self) -> np.ndarray:
        """Parent that a computation aggregates or whose pebble slides, for each move (int64); -1: none."""

def search_pebbles(
    board: PebbleBoard, costs: PebbleCosts, limits: PebbleLimits, keep_on: Callable[[PebbleProgress], bool]
) -> PebbleResult:
    """Search for the cheapest pebble game on two levels of memory; see redblue.pebble.search.

    keep_on: called up to 20 times per second; False ends the search. Ctrl-C ends the search, too, and raises nothing.
    Raises ValueError if the board has more than two levels or more than 128 nodes, or with partial computation more
    than 256 edges.
    """

def under_valgrind() -> bool:
    """Whether valgrind runs this process."""

class Output:
    """Memory that a measured call writes: its address and its size in bytes."""

    def __init__(self, address: int, bytes: int) -> None: ...

def meter_arm(outputs: Sequence[Output], line_bytes: int) -> None:
    """Arm the meter: callgrind measures the next call of an attention pass or of meter_loop.

    outputs: the memory that the call writes; meter_stop reads every line of it. line_bytes: size of a cache line.
    """

def meter_start() -> None:
    """Empty callgrind's simulated caches and start counting. Without valgrind, the function does nothing."""

def meter_stop() -> None:
    """End a measurement, and disarm the meter.

    callgrind dumps its counts. Then the function reads every line of the outputs that meter_arm got, and callgrind
    dumps the counts of these reads: their misses are the lines that the cache no longer held.
    """

def meter_loop(name: str, to: int, other: int, third: int, count: int, step: int) -> None:
    """Run a loop over doubles whose memory traffic is known. The function does not check the addresses.

    name: "copy" copies `count` doubles from `other` to `to`. "strided" reads every `step`-th of `count` doubles at
    `other`, twice. "product" adds the matrix product of `other` and `third` to `to`; all three matrices are
    count x count, and the tiles are step x step. Raises ValueError for another name.
    """
