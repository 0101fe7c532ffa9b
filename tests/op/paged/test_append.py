"""append_paged against a cache that is written key by key. A refused call leaves the cache unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from support.attention import DTYPES
from support.examples import examples
from support.paged import GARBAGE, LAYOUTS, PAGE_SIZES, bits, caches, tensor


@st.composite
def appends(draw):
    """Draw the arguments of append_paged: sequences may share leading pages, and then have their own pages."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype, page = DTYPES[draw(st.sampled_from(list(DTYPES)))], draw(PAGE_SIZES)
    batch, heads, d, d_v = (draw(x) for x in (st.sampled_from([2, 3, 0]), st.integers(1, 3), *[st.integers(1, 9)] * 2))
    layout = draw(st.sampled_from([*LAYOUTS, "alias"]))
    if layout == "alias":
        d_v = min(d, d_v)
    packed, n = draw(st.booleans()), draw(st.sampled_from([1, 0, 2, 3 * page + 1]))
    new = rng.integers(0, 2 * page + 2, batch) if packed else np.full(batch, n)
    shared = draw(st.integers(0, 2))
    lengths = rng.integers(0, 3 * page + 1, batch) + shared * page
    needed = -(-(lengths + new) // page)
    pages = shared + int(needed.sum()) + 2
    table = rng.choice(GARBAGE, (batch, int(needed.max(initial=0)) + 1))
    free = list(rng.permutation(pages))
    common = [free.pop() for _ in range(shared)]
    for b, count in enumerate(needed):
        table[b, :count] = [*common, *(free.pop() for _ in range(count - shared))]
    k_pages, v_pages = caches((pages, page, heads, d), d_v, dtype, layout)
    k_pages[...] = rng.standard_normal(k_pages.shape)
    if layout != "alias":
        v_pages[...] = rng.standard_normal(v_pages.shape)
    shape = (int(new.sum()), heads) if packed else (batch, n, heads)
    k, v = (rng.standard_normal((*shape, width)).astype(dtype) for width in (d, d_v))
    if layout == "alias":
        v = k[..., (d - d_v) // 2 :][..., :d_v]
    starts = np.append(0, np.cumsum(new)) if packed else None
    return k, v, k_pages, v_pages, table, lengths, starts


def written(k, v, k_pages, v_pages, table, lengths, starts):
    """Copies of the caches with the new keys and values written one by one, and the new lengths."""
    batch, page = len(lengths), k_pages.shape[1]
    starts = np.arange(batch + 1) * k.shape[1] if starts is None else starts
    ends, results = [int(n) for n in lengths], [k_pages.copy(), v_pages.copy()]
    rows = [x.reshape(starts[-1], *x.shape[-2:]) for x in (k, v)]
    for b in range(batch):
        for row in range(starts[b], starts[b + 1]):
            for new, cache in zip(rows, results, strict=True):
                cache[table[b, ends[b] // page], ends[b] % page] = new[row]
            ends[b] += 1
    return *results, np.array(ends, np.int64)


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
@examples(50)
@given(appends())
def test_as_if_written_key_by_key(library, arguments):
    k_pages, v_pages, ends = written(*arguments)
    if library == "PyTorch":
        pytest.importorskip("torch")
        got = rb.append_paged(*map(tensor, arguments))
    else:
        got = rb.append_paged(*arguments)
    assert (got.dtype, got.tolist()) == (np.int64, ends.tolist())
    assert bits((arguments[2], arguments[3])) == bits((k_pages, v_pages))


def test_keys_that_lie_in_the_cache_itself():
    """All new keys are read before any of them is overwritten."""
    cache = np.arange(24.0).reshape(6, 2, 1, 2)
    expected = cache[:3].copy()
    view = cache[:3].reshape(1, 6, 1, 2)
    assert rb.append_paged(view, view, cache, cache, [[1, 2, 5]], [0]).tolist() == [6]
    np.testing.assert_array_equal(cache[[1, 2, 5]], expected)


def test_tensors_of_keys_that_lie_in_the_cache_itself():
    torch = pytest.importorskip("torch")
    cache = torch.arange(24.0).reshape(6, 2, 1, 2)
    expected = cache[:3].clone()
    view = cache[:3].reshape(1, 6, 1, 2)
    assert rb.append_paged(view, view, cache, cache, [[1, 2, 5]], [0]).tolist() == [6]
    assert torch.equal(cache[[1, 2, 5]], expected)


def shared_rows(layout):
    """New keys and values that lie in the caches with strides that a copy does not have; page 5 is free."""
    memory = np.arange(1.0, 289.0).reshape(6, 3, 2, 8)
    if layout == "heads outside":
        k_pages, v_pages = (memory[..., part].swapaxes(1, 2).copy().swapaxes(1, 2) for part in np.s_[:4, 4:])
    else:
        k_pages, v_pages = memory[..., :4], memory[..., 4:]
    rows = np.s_[1:2, :2] if layout == "part of a page" else np.s_[1:2]
    return k_pages[rows], v_pages[rows], k_pages, v_pages


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
@pytest.mark.parametrize("layout", ["heads outside", "values beside keys", "part of a page"])
def test_new_keys_and_values_that_are_strided_views_of_the_caches(library, layout):
    if library == "PyTorch":
        pytest.importorskip("torch")
    arguments = (*shared_rows(layout), np.array([[5]]), np.array([0]), None)
    k_pages, v_pages, _ = written(*arguments)
    rb.append_paged(*(map(tensor, arguments) if library == "PyTorch" else arguments))
    assert bits(arguments[2:4]) == bits((k_pages, v_pages))


def small(**change):
    rng = np.random.default_rng(0)
    k, v, k_pages, v_pages = (
        rng.standard_normal(s).astype(np.float32) for s in [(3, 1, 1, 4)] * 2 + [(8, 2, 1, 4)] * 2
    )
    arguments = {"k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages, "lengths_k": [3, 2, 4]}
    arguments["page_table"] = np.array([[0, 1, 9], [2, 3, 9], [4, 5, 6]])
    return arguments | {name: x(arguments[name]) if callable(x) else x for name, x in change.items()}


def overlapping(x):
    return np.lib.stride_tricks.as_strided(x, x.shape, (4 * x.itemsize, *x.strides[1:]))


def locked(x):
    x.flags.writeable = False
    return x


REFUSED = [
    ({"page_table": [[0, 1], [2, 3], [4, 5]]}, r"page_table has 2 pages .* the new lengths\[2\] = 5 keys need 3 pages"),
    ({"page_table": [[0, 1, 9], [2, 8, 9], [4, 5, 6]]}, r"page_table\[1, 1\] must be a page, 0 to 7, got 8"),
    ({"page_table": [[0, 3, 9], [2, 3, 9], [4, 5, 6]], "lengths_k": [2, 2, 4]}, r"sequences 0 and 1 share one"),
    (
        {
            "k": lambda k: np.repeat(k, 3, 1),
            "v": lambda v: np.repeat(v, 3, 1),
            "page_table": [[0, 1, 1], [2, 3, 9], [4, 5, 9]],
            "lengths_k": [2, 0, 0],
        },
        r"but sequence 0 lists page 1 twice: give separate pages",
    ),
    ({"page_table": [[0, 1, 9], [2, 5, 9], [4, 5, 6]]}, r"sequence 1, row 0 of page 5 holds a key of a sequence"),
    ({"page_table": [[0, 0, 9], [2, 3, 9], [4, 5, 6]]}, r"sequence 0, row 1 of page 0 holds a key of a sequence"),
    ({"lengths_k": [3, 2]}, r"lengths_k must have one entry for each of 3 sequences, got 2"),
    ({"lengths_k": [3, -1, 4]}, r"lengths_k\[1\] must be at least 0, got -1"),
    ({"cu_seqlens": [0, 1, 2, 3]}, r"cu_seqlens is for packed k"),
    ({"k": lambda k: k[:, 0], "v": lambda v: v[:, 0]}, r"packed k \(3, 1, 4\) needs cu_seqlens"),
    ({"v": lambda v: v[:2]}, r"v must have the rows and heads of k, \(3, 1, 1\), got \(2, 1, 1\)"),
    ({"v": lambda v: v[..., :3]}, r"v must have the heads and width of v_pages, \(1, 4\), got \(1, 3\)"),
    (
        {"k": lambda k: np.repeat(k, 2, 2), "v": lambda v: np.repeat(v, 2, 2)},
        r"k must have the heads and width of k_pa",
    ),
    ({"v_pages": lambda v: v[:, :1]}, r"v_pages must have the pages, rows and heads of k_pages"),
    ({"k": lambda k: k.astype(np.float64)}, r"k, v, k_pages, v_pages must be of one type"),
    ({"k_pages": lambda k: k.tolist()}, r"k_pages must be an array"),
    ({"v_pages": locked}, r"v_pages must be writable, got a read-only array"),
    (
        {"k_pages": lambda k: overlapping(k)},
        r"k_pages must have separate memory for each entry, but strides .* overlap",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused_leaves_the_cache_as_it_was(change, message):
    arguments = small(**change)
    before = bits((arguments["k_pages"], arguments["v_pages"]))
    with pytest.raises(rb.RedblueError, match=message):
        rb.append_paged(**arguments)
    assert bits((arguments["k_pages"], arguments["v_pages"])) == before


def test_a_page_that_another_sequence_holds_up_to_the_new_row_is_free():
    """Sequences that share their last page may differ in length. A row may be written if no sequence holds it yet."""
    arguments = small(k=lambda k: k[:1, 0], v=lambda v: v[:1, 0], cu_seqlens=[0, 1, 1], lengths_k=[3, 3])
    arguments["page_table"] = [[0, 1], [2, 1]]
    assert rb.append_paged(**arguments).tolist() == [4, 3]
    np.testing.assert_array_equal(arguments["k_pages"][1, 1], arguments["k"][0])


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
def test_values_that_are_columns_of_keys_must_be_these_columns(library):
    of = tensor if library == "PyTorch" else lambda x: x
    if library == "PyTorch":
        pytest.importorskip("torch")
    arguments = {name: of(x) for name, x in small().items()}
    k, cache = arguments["k"], arguments["k_pages"]
    before = bits((np.asarray(cache),))
    wrong = (
        (k[..., 1:3], cache[..., :2], "v must be columns 0 to 1 of k, because v_pages are these columns of k_pages"),
        (k[..., :2], cache[..., 2:], "v must be columns 2 to 3 of k"),
        (arguments["v"], cache, "v must be columns 0 to 3 of k"),
    )
    for v, v_pages, message in wrong:
        with pytest.raises(rb.RedblueError, match=message):
            rb.append_paged(**arguments | {"v": v, "v_pages": v_pages})
    assert bits((np.asarray(cache),)) == before
    k[0, 0, 0, 0] = float("nan")  # compared as equal to itself here
    assert rb.append_paged(**arguments | {"v": k[..., :2], "v_pages": cache[..., :2]}).tolist() == [4, 3, 5]


def append_ones(library, k_pages, v_pages):
    """Append one key to each of two sequences without keys. Each tensor has its own storage."""
    if library == "PyTorch":
        pytest.importorskip("torch")
    of = tensor if library == "PyTorch" else lambda x: x
    pages, _, heads, width = k_pages.shape
    new = np.ones((min(2, pages), 1, heads, width), np.float32)
    table, lengths = np.arange(len(new))[:, None], [0] * len(new)
    return rb.append_paged(of(new), of(new.copy()), of(k_pages), of(v_pages), table, lengths)


MEMORY = np.zeros((9, 2, 2, 6), np.float32)
ONE_HEAD = MEMORY[:, :, :1]
OVERLAPPING = {
    "some columns": (ONE_HEAD[:8, ..., :4], ONE_HEAD[:8, ..., 2:]),
    "other pages": (ONE_HEAD[:8, ..., :4], ONE_HEAD[1:, ..., :4]),
    "another layout": (ONE_HEAD[:8, ..., :4], MEMORY.reshape(-1)[:64].reshape(8, 2, 1, 4)),
}
APART = {
    "other heads and columns": (ONE_HEAD[:8, ..., :4], MEMORY[:8, :, 1:, 2:]),
    "other pages": (ONE_HEAD[:4, ..., :3], ONE_HEAD[4:8, ..., :3]),
    "other columns": (MEMORY[:8, ..., :3], MEMORY[:8, ..., 3:]),
    "alternate pages": (ONE_HEAD[::2][:4, ..., :4], ONE_HEAD[1::2][:4, ..., :4]),
    "overlapping views, of which other pages are written": (ONE_HEAD[:7, ..., :4], ONE_HEAD[2:, ..., :4]),
    "no pages": (ONE_HEAD[:0], ONE_HEAD[:0]),
}


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_caches_that_share_memory_otherwise_are_refused(library, name):
    with pytest.raises(rb.RedblueError, match="v_pages must be columns of k_pages or have separate memory"):
        append_ones(library, *OVERLAPPING[name])
    assert not MEMORY.any()


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
@pytest.mark.parametrize("name", APART)
def test_caches_may_be_parts_of_one_array(library, name):
    k_pages, v_pages = APART[name]
    assert append_ones(library, k_pages, v_pages).tolist() == [1] * min(2, len(k_pages))
    for cache in (k_pages, v_pages):
        assert (cache[:2, 0] == 1).all()
    MEMORY[...] = 0


@pytest.mark.parametrize("layout", ["pages first", "rows first"])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_held_keys_and_values_are_not_overwritten(name, layout):
    """Page 3 of one cache is page 1 of the other, which begins two pages later."""
    memory = np.zeros((9, 2, 1, 4), np.float32) if layout == "pages first" else np.zeros((2, 9, 1, 4)).swapaxes(0, 1)
    early, late = memory[:7], memory[2:]
    k_pages, v_pages = (early, late) if name == "keys" else (late, early)
    early[3, :2] = 7  # sequence 0
    new = np.ones((1, 1, 4), memory.dtype)
    arguments = {"k": new, "v": 2 * new, "k_pages": k_pages, "v_pages": v_pages, "page_table": [[3], [1]]}
    before = memory.copy()
    with pytest.raises(rb.RedblueError, match=f"would overwrite {name} of a sequence"):
        rb.append_paged(**arguments, lengths_k=[2, 0], cu_seqlens=[0, 0, 1])
    np.testing.assert_array_equal(memory, before)
    free = arguments | {"page_table": [[3], [6]]}
    assert rb.append_paged(**free, lengths_k=[2, 0], cu_seqlens=[0, 0, 1]).tolist() == [2, 1]
    assert (early[3] == 7).all()


def test_held_keys_inside_a_long_row_of_values_are_not_overwritten():
    """A row of values spans eight pages of keys, so pages of keys may begin and end inside the row."""
    memory = np.zeros(256, np.float32)
    k_pages = memory[50:82].reshape(4, 8)[:, :1].reshape(4, 1, 1, 1)
    v_pages = memory.reshape(4, 1, 1, 64)
    k_pages[2] = 7
    k, v = np.ones((1, 1, 1), np.float32), np.ones((1, 1, 64), np.float32)
    with pytest.raises(rb.RedblueError, match="new values would overwrite keys of a sequence"):
        rb.append_paged(k, v, k_pages, v_pages, [[2], [1]], [1, 0], [0, 0, 1])
    assert k_pages[2] == 7


def test_columns_of_keys_are_found_in_tensors_of_arrays():
    """Each tensor made from an array has its own storage, which begins at the array."""
    pytest.importorskip("torch")
    cache = np.zeros((4, 2, 1, 4), np.float32)
    k, table = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4), np.zeros((1, 1), int)
    arrays = {"k": k, "v": k[..., 1:3], "k_pages": cache, "v_pages": cache[..., 1:3], "page_table": table}
    arguments = {name: tensor(x) for name, x in arrays.items()}
    assert rb.append_paged(**arguments, lengths_k=[0]).tolist() == [1]
    np.testing.assert_array_equal(cache[0, 0], k[0, 0])
    with pytest.raises(rb.RedblueError, match="v must be columns 1 to 2 of k"):
        rb.append_paged(**arguments | {"v": arguments["v"] + 1}, lengths_k=[1])


def test_tensors_without_values_memory_or_with_gradients_are_refused():
    torch = pytest.importorskip("torch")
    arguments = {name: tensor(x) for name, x in small().items()}
    wrong = (
        ({"k": arguments["k"].requires_grad_()}, "k requires a gradient, but a paged cache has no backward pass"),
        ({"k_pages": arguments["k_pages"][:1].expand(8, 2, 1, 4)}, "k_pages must have separate memory"),
        ({"k_pages": arguments["k_pages"].numpy()}, "must all be PyTorch tensors, or all be arrays"),
        ({"v_pages": arguments["v_pages"].to_sparse()}, "v_pages must be dense"),
        ({"page_table": torch.zeros(3, 3, device="meta", dtype=torch.int32)}, "page_table must be .* got meta device"),
        ({"page_table": torch.zeros(3, 3, dtype=torch.bfloat16)}, "page_table must be .* whole numbers"),
    )
    for change, message in wrong:
        with pytest.raises(rb.RedblueError, match=message):
            rb.append_paged(**arguments | {"k": arguments["k"].detach()} | change)
