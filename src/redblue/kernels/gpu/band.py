"""Which keys a block of rows attends, by the band or by lists, and which rows attend a block of keys (None: all)."""

# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from redblue.kernels.gpu.products import both, lanes
from redblue.kernels.gpu.scores import in_band, listed


@triton.jit
def keys_of(scores, first, stop, n_k, GROUP: tl.constexpr):
    """The keys that some of rows first .. stop - 1 attend: a range, 0 .. 0 if there are none."""
    low, high = first * 0, n_k
    if scores.first is not None:
        low = tl.maximum(0, first // GROUP + scores.first)
    if scores.end is not None:
        high = tl.minimum(n_k, (stop - 1) // GROUP + scores.end)
    return tl.where(low < high, low, 0), tl.where(low < high, high, 0)


@triton.jit
def rows_of(scores, first, stop, n_rows, GROUP: tl.constexpr):
    """The rows that attend some of keys first .. stop - 1: a range, 0 .. 0 if there are none."""
    low, high = first * 0, n_rows
    if scores.end is not None:
        low = tl.maximum(0, first - scores.end + 1) * GROUP
    if scores.first is not None:
        high = tl.minimum(n_rows, (stop - scores.first) * GROUP)
    return tl.where(low < high, low, 0), tl.where(low < high, high, 0)


@triton.jit
def attending_rows(scores, i_query, first, stop):
    """Which queries attend some of keys first .. stop - 1."""
    if scores.first is not None and scores.end is not None:
        return (i_query + scores.first < stop) & (i_query + scores.end > first)
    elif scores.first is not None:
        return i_query + scores.first < stop
    elif scores.end is not None:
        return i_query + scores.end > first


@triton.jit
def attended_keys(scores, i_key, first, stop, GROUP: tl.constexpr):
    """Which keys are attended by some of rows first .. stop - 1."""
    if scores.first is not None and scores.end is not None:
        return (i_key >= first // GROUP + scores.first) & (i_key < (stop - 1) // GROUP + scores.end)
    elif scores.first is not None:
        return i_key >= first // GROUP + scores.first
    elif scores.end is not None:
        return i_key < (stop - 1) // GROUP + scores.end


@triton.jit
def attended_blocks(scores, i_key, first, stop, n_k, KEYS: tl.constexpr, GROUP: tl.constexpr):
    """Which keys lie in a block of KEYS, some of which are attended by some of rows first .. stop - 1."""
    first_key = i_key // KEYS * KEYS
    last_key = tl.minimum(first_key + KEYS, n_k) - 1
    if scores.first is not None and scores.end is not None:
        return (last_key >= first // GROUP + scores.first) & (first_key < (stop - 1) // GROUP + scores.end)
    elif scores.first is not None:
        return last_key >= first // GROUP + scores.first
    elif scores.end is not None:
        return first_key < (stop - 1) // GROUP + scores.end


@triton.jit
def live_tiles(p_starts, share, shares):
    """Which entries of its list a block has, of these one of `shares` equal shares."""
    begin, stop = tl.load(p_starts), tl.load(p_starts + 1)
    count = stop - begin
    return begin + count * share // shares, begin + count * (share + 1) // shares


@triton.jit
def first_from(entries, begin, stop, least):
    """Of ascending entries begin .. stop - 1, the first that is no less."""
    while begin < stop:
        middle = (begin + stop) // 2
        later = tl.load(entries + middle) < least
        begin = tl.where(later, middle + 1, begin)
        stop = tl.where(later, stop, middle)
    return begin


@triton.jit
def attending(
    scores,
    lists,
    t,
    TILES: tl.constexpr,
    i_row,
    i_key,
    m_key,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Which pairs of a tile attend; None: all. t: the entry of lists that it lies in, if it is a "partial" one."""
    if TILES == "partial":
        line = t * ROWS + i_row % ROWS
        return listed((lists.bits + line * ((COLS + 63) // 64))[:, None], (i_key % COLS)[None, :], COLS)
    elif TILES == "band" and (scores.first is not None or scores.end is not None):
        return both(in_band(scores, (i_row // GROUP)[:, None], i_key[None, :]), lanes(None, m_key))
    elif TILES == "band":
        return lanes(None, m_key)
