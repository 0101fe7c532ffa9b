"""attention_paged against float64 on random caches. Its bits do not depend on threads, page numbers or the batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue import Mask
from support.attention import DTYPES, running
from support.examples import examples
from support.paged import (
    PagedCase,
    alone,
    bits,
    caches,
    check,
    moved,
    paged_cases,
    places,
    run,
    run_on_torch,
    table_of,
    tensor,
)


@examples(120)
@given(paged_cases())
def test_against_float64(case):
    before = bits((case.k_pages, case.v_pages))
    check(case, run(case))
    assert bits((case.k_pages, case.v_pages)) == before


@examples(25)
@given(paged_cases())
def test_tensors_against_float64(case):
    pytest.importorskip("torch")
    check(case, run_on_torch(case))


@examples(40)
@given(paged_cases(), st.integers(0, 2**32 - 1))
def test_bits_do_not_depend_on_where_pages_lie(case, seed):
    assert bits(run(moved(case, np.random.default_rng(seed)))) == bits(run(case))


@examples(40)
@given(paged_cases())
def test_bits_of_a_sequence_do_not_depend_on_the_others(case):
    case.options["prefix_pages"] = 0
    out, lse = run(case)
    rows, sums = out.reshape(-1, *out.shape[-2:]), lse.reshape(-1, lse.shape[-1])
    for b in range(len(case.lengths_k)):
        first, end = case.starts[b : b + 2]
        single = run(alone(case, b))
        assert bits(single) == bits((rows[first:end], sums[first:end]))


def long_case(dtype="float32", n_q=1, kv_heads=2, group=4, lengths=(1500, 3, 0, 700, 1), **options):
    """A batch whose sequences have very different lengths."""
    rng = np.random.default_rng(0)
    lengths = np.array(lengths)
    table, pages = table_of(rng, lengths, 16, "distinct")
    k, v = caches((pages, 16, kv_heads, 24), 16, DTYPES[dtype], "heads outside")
    q = rng.standard_normal((len(lengths), n_q, kv_heads * group, 24)).astype(DTYPES[dtype])
    case = PagedCase(q, k, v, table, lengths, options=options, layout="heads outside")
    held = places(case)
    for cache in (k, v):
        cache[held] = rng.standard_normal((int(held.sum()), *cache.shape[2:]))
    return case


def nested(case):
    """Let sequences 1 to 3 share their first 10 pages with sequence 0, and 2 and 3 share 8 more pages."""
    case.page_table[1:, :10] = case.page_table[0, :10]
    case.page_table[3, 10:18] = case.page_table[2, 10:18]
    return case


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("n_q", "lengths"), [(1, (2500, 3, 0, 700, 1)), (4, (160, 200, 400, 290)), (70, (300, 9, 80))])
def test_bits_do_not_depend_on_the_number_of_threads(isa, dtype, n_q, lengths):
    case = long_case(dtype, n_q, lengths=lengths)
    case = nested(case) if len(lengths) == 4 else case
    with running(threads=1):
        expected = bits(run(case))
    for threads in (2, 3, 8):
        with running(threads=threads):
            assert bits(run(case)) == expected


def test_bits_do_not_depend_on_pytorchs_number_of_threads():
    torch = pytest.importorskip("torch")
    case = long_case(n_q=3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(bits(run_on_torch(case)))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


WINDOW = Mask.sliding_window(100, 0, align="bottom-right")


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("options", [{}, {"mask": WINDOW, "softcap": 3.0}, {"mask": np.eye(4, dtype=bool)}])
def test_long_sequences(isa, dtype, options):
    case = long_case(dtype, n_q=4, lengths=(1100, 3, 0, 77), **options)
    check(case, run(case))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_many_queries(isa, dtype):
    case = long_case(dtype, n_q=70, lengths=(150, 3, 0, 77))
    check(case, run(case))


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("n_q", [1, 5])
def test_nested_prefixes(isa, dtype, n_q):
    case = nested(long_case(dtype, n_q, lengths=(160, 200, 400, 290)))
    check(case, run(case))


@pytest.mark.parametrize("prefix", [None, 0, 12])
@pytest.mark.parametrize("n_q", [1, 5])
def test_a_shared_prefix_gives_the_same_results_however_it_is_read(prefix, n_q):
    case = long_case(n_q=n_q, lengths=(400, 230, 192, 300))
    case.page_table[:, :12] = case.page_table[0, :12]
    case.options["prefix_pages"] = prefix
    check(case, run(case))


def test_mla_reads_values_as_columns_of_keys():
    rng = np.random.default_rng(0)
    lengths = np.array([70, 33])
    table, pages = table_of(rng, lengths, 32, "distinct")
    k, _ = caches((pages, 32, 1, 576), 512, np.dtype(np.float32), "alias")
    case = PagedCase(rng.standard_normal((2, 1, 16, 576)).astype(np.float32), k, k[..., :512], table, lengths)
    case.options["scale"] = 192**-0.5
    k[places(case)] = rng.standard_normal((103, 1, 576))
    check(case, run(case))


def small(**change):
    """Keyword arguments of a call of three sequences, with some changed."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((3, 1, 2, 4), (8, 2, 1, 4), (8, 2, 1, 4)))
    table = np.array([[0, 1], [2, 3], [4, 5]])
    arguments = {"q": q, "k_pages": k, "v_pages": v, "page_table": table, "lengths_k": [3, 2, 4]}
    return arguments | {name: x(arguments[name]) if callable(x) else x for name, x in change.items()}


REFUSED = [
    ({"page_table": [[0, 1], [2, 3], [4, 8]]}, r"page_table\[2, 1\] must be a page, 0 to 7, got 8"),
    ({"page_table": [[0, -1], [2, 3], [4, 5]]}, r"page_table\[0, 1\] must be a page, 0 to 7, got -1"),
    ({"page_table": [[0], [2], [4]]}, r"page_table has 1 pages .* lengths_k\[0\] = 3 keys need 2 pages of 2"),
    ({"page_table": [[0, 1], [2, 3]]}, r"page_table must be whole numbers \(3 sequences, pages per sequence\)"),
    ({"page_table": [[0.0, 1], [2, 3], [4, 5]]}, r"page_table must be whole numbers"),
    ({"page_table": [[0, 1], [2], [4, 5]]}, r"page_table must have rows of one length"),
    ({"lengths_k": [3, 2]}, r"lengths_k must have one entry for each of 3 sequences, got 2"),
    ({"lengths_k": [3, -2, 4]}, r"lengths_k\[1\] must be at least 0, got -2"),
    ({"lengths_k": [3, 2.0, 4]}, r"lengths_k must be a list of whole numbers"),
    ({"cu_seqlens_q": [0, 1, 2, 3]}, r"cu_seqlens_q is for packed q"),
    ({"q": lambda q: q[:, 0]}, r"packed q \(3, 2, 4\) needs cu_seqlens_q"),
    ({"q": lambda q: q[:, 0], "cu_seqlens_q": [0, 1, 3]}, r"lengths_k must have one entry for each of 2 sequences"),
    ({"q": lambda q: q[:, 0], "cu_seqlens_q": [0, 2, 1, 3]}, r"cu_seqlens_q must not descend"),
    ({"q": lambda q: q[:, 0], "cu_seqlens_q": [0, 1, 2, 4]}, r"cu_seqlens_q must end at 3, the rows of q, got 4"),
    ({"q": lambda q: q[:, 0], "cu_seqlens_q": [0, 1, 2, 3], "bias": np.zeros(4)}, r"bias needs q of four dimensions"),
    ({"q": lambda q: q[0, 0]}, r"q must be \(B, n, heads, width\) or packed"),
    ({"q": lambda q: q[..., :3]}, r"head dimension of k_pages \(4\) must equal that of q \(3\)"),
    ({"q": lambda q: q.astype(np.float64)}, r"q, k_pages, v_pages must be of one type"),
    ({"q": lambda q: q.astype(np.int32)}, r"q must be of type float64, .* got int32"),
    ({"q": lambda q: q.tolist()}, r"q must be an array \(PyTorch, NumPy or DLPack\), got list"),
    ({"k_pages": lambda k: k[0]}, r"k_pages must be \(pages, page, heads, width\), got shape \(2, 1, 4\)"),
    ({"k_pages": lambda k: np.repeat(k, 3, 2), "v_pages": lambda v: np.repeat(v, 3, 2)}, r"heads of q \(2\) must be a"),
    ({"k_pages": lambda k: np.ma.masked_array(k, k > 0)}, r"k_pages is a masked array"),
    ({"v_pages": lambda v: v[:7]}, r"v_pages must have the pages, rows and heads of k_pages, \(8, 2, 1\), got \(7"),
    ({"v_pages": lambda v: v[..., :0]}, r"d_v, the last dimension of v, must be at least 1, got 0"),
    ({"mask": Mask.causal()}, r'mask must count from the last query and key: give align="bottom-right"'),
    ({"mask": Mask.prefix(2)}, r"mask must be a window or a boolean array over the newest keys, got Mask.prefix\(2\)"),
    ({"mask": np.ones((1, 4))}, r"mask must be a Mask or a boolean array \(n_q, newest keys\), got float64 \(1, 4\)"),
    ({"mask": np.ones((2, 4), bool)}, r"mask must broadcast to \(3, 1, 'newest keys'\), got \(2, 4\)"),
    ({"mask": [[True], [True, False]]}, r"mask must be .* got a ragged list"),
    (
        {"bias": np.zeros((2, 1, 1, 4), np.float32)},
        r"bias must broadcast to .* \(3, 2, 1, 4\), got shape \(2, 1, 1, 4\)",
    ),
    ({"bias": np.zeros(9, np.float32)}, r"bias must broadcast to .* \(3, 2, 1, 4\), got shape \(9,\)"),
    ({"bias": np.zeros(4)}, r"bias of type float64 needs float64 arrays, got float32"),
    ({"alibi": np.zeros((5, 2), np.float32)}, r"alibi must broadcast to \(..., heads\) = \(3, 2\), got shape \(5, 2\)"),
    ({"alibi": [0.5, 0.5]}, r"alibi must be an array"),
    ({"sinks": np.zeros(3, np.float32)}, r"sinks must have shape \(2,\), one per head of q, got \(3,\)"),
    ({"scale": np.nan}, r"scale must be finite"),
    ({"softcap": -1.0}, r"softcap must be above 0"),
    ({"prefix_pages": 2}, r"prefix_pages must be at most the full pages of every sequence, 1, got 2"),
    ({"prefix_pages": 1}, r"prefix_pages says that all sequences share their first 1 pages, but sequence 1 has others"),
    ({"prefix_pages": True}, r"prefix_pages must be a whole number"),
    ({"return_lse": 1}, r"return_lse must be True or False, got 1"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_wrong_arguments_are_refused_by_name(change, message):
    with pytest.raises(rb.RedblueError, match=message):
        rb.attention_paged(**small(**change))


@pytest.mark.parametrize("change", [{"dropout": 0.1}, {"schedule": "flash"}, {"seed": 1}])
def test_options_of_training_are_not_taken(change):
    with pytest.raises(TypeError, match=r"attention_paged\(\) got an unexpected keyword"):
        rb.attention_paged(**small(**change))


def test_a_batch_of_nothing_checks_its_options_too():
    nothing = small(q=lambda q: q[:0], page_table=np.zeros((0, 0), int), lengths_k=[])
    out, lse = rb.attention_paged(**nothing, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 1, 2, 4), (0, 1, 2))
    with pytest.raises(rb.RedblueError, match="sinks must have shape"):
        rb.attention_paged(**nothing, sinks=np.zeros(7, np.float32))


def test_sequences_without_keys_give_zeros_even_without_pages():
    nothing = small(k_pages=lambda k: k[:0], v_pages=lambda v: v[:0], lengths_k=[0, 0, 0])
    out, lse = rb.attention_paged(**nothing, return_lse=True)
    assert not out.any()
    assert (lse == -np.inf).all()
    with pytest.raises(rb.RedblueError, match=r"page_table\[0, 0\] must be a page, 0 to -1|has no pages"):
        rb.attention_paged(**nothing | {"lengths_k": [1, 0, 0]})


def test_arrays_of_other_libraries():
    jnp = pytest.importorskip("jax.numpy")
    arguments = small()
    expected = rb.attention_paged(**arguments)
    for name in ("q", "k_pages", "v_pages"):
        arguments[name] = jnp.asarray(arguments[name])
    np.testing.assert_array_equal(rb.attention_paged(**arguments), expected)


@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
@pytest.mark.parametrize("name", ["sinks", "alibi", "bias"])
def test_options_are_arrays_of_any_strides(library, name):
    of = tensor if library == "PyTorch" else lambda x: x
    if library == "PyTorch":
        pytest.importorskip("torch")
    arguments = {key: of(x) for key, x in small().items()}
    shape = (3, 2, 1, 4) if name == "bias" else (2,)
    dense = np.random.default_rng(1).uniform(1, 3, shape).astype(np.float32)
    strided = np.full((*shape, 3), 50, np.float32)[..., 1]
    strided[...] = dense
    expected = rb.attention_paged(**arguments, **{name: of(dense)})
    np.testing.assert_array_equal(rb.attention_paged(**arguments, **{name: of(strided)}), expected)


@pytest.mark.parametrize("name", ["sinks", "alibi", "bias"])
def test_options_that_are_negated_views(name):
    """The imaginary part of a conjugate holds its negated numbers in memory."""
    torch = pytest.importorskip("torch")
    arguments = {key: tensor(x) for key, x in small().items()}
    shape = (3, 2, 1, 4) if name == "bias" else (2,)
    x = torch.complex(torch.zeros(shape), torch.linspace(1, 3, int(np.prod(shape))).reshape(shape)).conj().imag
    assert x.is_neg()
    expected = rb.attention_paged(**arguments, **{name: x.resolve_neg()})
    assert torch.equal(rb.attention_paged(**arguments, **{name: x}), expected)


def test_sparse_options_are_refused():
    torch = pytest.importorskip("torch")
    arguments = {key: tensor(x) for key, x in small().items()}
    with pytest.raises(rb.RedblueError, match="bias must be dense, got a tensor of layout"):
        rb.attention_paged(**arguments, bias=torch.zeros(3, 2, 1, 4).to_sparse())


@pytest.mark.parametrize("wrong", ["one key less", "another page", "a key later", "another mask"])
def test_the_reference_sees_wrong_results(wrong):
    case = long_case(n_q=2, lengths=(40, 33))
    other = replace(case, page_table=case.page_table.copy(), lengths_k=case.lengths_k.copy(), options={})
    if wrong == "one key less":
        other.lengths_k[0] -= 1
    elif wrong == "another page":
        other.page_table[1, 0] = case.page_table[0, 0]
    elif wrong == "a key later":
        other.k_pages = np.roll(case.k_pages, 1, axis=1)
        other.k_pages[np.isnan(other.k_pages)] = 0
    else:
        other.options["mask"] = Mask.full()
    check(case, run(case))
    with pytest.raises(AssertionError, match="error"):
        check(case, run(other))
