"""attention_paged by the Triton kernels against float64: interpreted, or, with TRITON_INTERPRET=0, on a GPU."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import redblue as rb
from redblue.kernels.gpu.paged import layout
from redblue.kernels.gpu.planning.plan import Launch, Unplanned
from redblue.meter.interpreter import counting
from redblue.op.pytorch import interpreted
from redblue.op.pytorch.paged import gpu as paged_gpu
from redblue.schedules.flash import ForwardTiles
from support.drawn_pages import draw
from support.examples import examples, thorough
from support.gpu import DEVICE, check_close, interpreted_only

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes masked lanes, too
    pytest.mark.usefixtures("bfloat16_to_nearest", "nan_in_new_memory"),
]


@pytest.fixture(autouse=True, scope="module")
def small():
    """Small tiles and short pieces, so that few keys have many of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paged_gpu, "plan", lambda *_: Launch("flash", ForwardTiles(16, 16)))
        patched.setattr(layout, "MIN_SPAN", 16)
        patched.setattr(layout, "MERGED_SHARE", 100.0)
        paged_gpu.forget()
        yield
    paged_gpu.forget()


def run(call, **options):
    attend = rb.attention_paged
    if DEVICE == "cuda":
        return attend(*call.arguments, **call.options, **options, return_lse=True)
    with interpreted.interpreted():
        return attend(*call.arguments, **call.options, **options, return_lse=True)


def check(call, **options):
    got = run(call, **options)
    for x, y in zip(got, call.expected(), strict=True):
        check_close(x, y, call.q.dtype)
    return got


def test_empty_sequences_holes_and_nan_in_unused_rows():
    check(draw(0, [37, 0, 9, 1, 16], [1, 2, 0, 3, 2], device=DEVICE))


def test_calls_without_sequences_queries_or_keys():
    check(draw(0, [], [], device=DEVICE))
    check(draw(0, [5, 3], [0, 0], device=DEVICE))
    check(draw(0, [0, 0], [1, 2], device=DEVICE, options=["sinks"]))


@pytest.mark.parametrize("page", [1, 7, 16, thorough(2), thorough(32)])
def test_page_sizes(page):
    check(draw(page, [50, 33], [2, 1], page=page, device=DEVICE))


@pytest.mark.parametrize("heads", [(3, 1), (20, 1), thorough((6, 2)), thorough((5, 5)), thorough((40, 2))])
def test_heads_that_share_a_key_head_are_stacked(heads):
    check(draw(1, [37, 20], [1, 5], heads=heads, device=DEVICE, options=["sinks"]))


@pytest.mark.parametrize("widths", [(40, 24), (1, 1), thorough((17, 130)), thorough((130, 3)), thorough((65, 576))])
def test_widths(widths):
    check(draw(2, [21], [2], heads=(2, 1), widths=widths, device=DEVICE))


@pytest.mark.parametrize("kind", ["heads first", "one array"])
def test_layouts_of_caches(kind):
    check(draw(3, [21, 40], [2, 1], kind=kind, device=DEVICE))


@pytest.mark.parametrize("widths", [(24, 20), (40, 32), thorough((40, 40)), thorough((40, 16)), thorough((576, 512))])
def test_values_that_are_a_slice_of_the_keys(widths):
    check(draw(4, [21, 40], [2, 1], heads=(4, 1), widths=widths, kind="alias", device=DEVICE))


@pytest.mark.parametrize("mask", ["full", "window", "both sides", "tree"])
def test_masks(mask):
    """Masks, also with more queries than keys, and with a tree of more keys than a sequence has."""
    check(draw(5, [40, 3, 45], [3, 5, 18], heads=(2, 1), device=DEVICE, options=[mask]))


@pytest.mark.parametrize(
    "options",
    [
        ["softcap", "scale", "alibi"],
        ["tree", "sinks", "alibi of each"],
        thorough(["window", "softcap", "alibi of each"]),
    ],
    ids=" ".join,
)
def test_options(options):
    check(draw(6, [40, 3], [3, 2], device=DEVICE, options=options))


@pytest.mark.parametrize("shape", [(2, 4, 3, 40), (2, 1, 1, 40), thorough((40,)), thorough((4, 3, 1)), thorough((1,))])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool])
def test_bias(shape, dtype):
    call = draw(7, [40, 21], [3, 3], device=DEVICE)
    bias = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    call.options["bias"] = bias > -1 if dtype == torch.bool else bias
    expected = call.expected()
    for x, y in zip(run(padded(call)), expected, strict=True):
        check_close(x.reshape(y.shape), y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_query_of_the_lowest_finite_bias_attends_its_keys(dtype):
    """Such a query gets the mean of the values, as in the textbook; a bias of -inf hides a key."""
    call = draw(7, [16, 16], [3, 3], dtype=dtype, device=DEVICE)
    bias = torch.zeros((2, 1, 3, 16), dtype=dtype, device=DEVICE)
    bias[:, :, 1], bias[:, :, 2] = torch.finfo(dtype).min, -torch.inf
    call.options["bias"] = bias
    expected, expected_lse = call.expected()
    out, lse = (x.reshape(y.shape) for x, y in zip(run(padded(call)), (expected, expected_lse), strict=True))
    check_close(out, expected, dtype)
    assert ((lse[[1, 4]] > -torch.inf) & (lse[[1, 4]] < torch.finfo(dtype).min / 4)).all()
    check_close(lse[[0, 2, 3, 5]], expected_lse[[0, 2, 3, 5]], dtype)


def padded(call):
    """The call with q of four dimensions."""
    call.q = call.q.reshape(2, 3, 4, 24)
    call.packed = False
    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(dtype):
    check(draw(8, [37, 20], [2, 4], dtype=dtype, device=DEVICE, options=["alibi"]))


@pytest.mark.parametrize("lengths", [[16, 16], [50, 33]], ids=["one piece", "several pieces"])
def test_nan_in_a_query_is_nan_in_its_output_and_log_sum_exp(lengths):
    call = draw(8, lengths, [2, 1], device=DEVICE)
    call.q[1, 2] = torch.nan
    for x in run(call):
        broken = x.isnan()
        assert broken[1, 2].all()
        assert broken.sum() == broken[1, 2].numel()


def test_page_tables_that_are_arrays():
    call = draw(9, [37, 20], [2, 1], device=DEVICE)
    expected, call.table = call.expected(), call.table.cpu().numpy()
    for x, y in zip(run(call), expected, strict=True):
        check_close(x, y)


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8"])
def test_page_tables_of_any_whole_numbers_and_strides(dtype):
    call = draw(9, [37, 20], [2, 1], device=DEVICE)
    call.table[call.table > 100] = 100
    call.table = call.table.to(getattr(torch, dtype)).mT.contiguous().mT
    check(call)


@pytest.mark.parametrize("prefix", [None, 5, 0])
@pytest.mark.parametrize("options", [[], ["tree"], thorough(["window", "sinks"]), thorough(["both sides", "alibi"])])
def test_shared_prefixes(prefix, options):
    call = draw(10, [37, 20, 41], [2, 1, 3], shared=5, device=DEVICE, options=options)
    check(call, prefix_pages=prefix)


def test_shared_prefixes_are_found_and_read_once():
    call = draw(11, [100, 110, 84, 70], [1, 1, 1, 1], page=16, heads=(1, 1), device=DEVICE)
    call.table[1, :6] = call.table[0, :6]
    call.table[3, :4] = call.table[2, :4]
    for x in (call.k, call.v):
        x.copy_(torch.randn_like(x))
    check(call)
    if DEVICE == "cpu":
        keys = [words(call, prefix)["k.pointer"] for prefix in (0, None)]
        assert keys == [call.k.shape[3] * n for n in (364, 364 - 96 - 64)]


def words(call, prefix=0):
    """The words read, by argument of the kernel."""
    with counting() as tally:
        run(call, prefix_pages=prefix)
    return {name: traffic.reads for name, traffic in tally.kernels["paged_forward"].items()}


@interpreted_only
def test_keys_and_values_are_read_once_for_the_heads_that_share_them():
    call = draw(12, [37, 50], [1, 2], heads=(8, 2), device=DEVICE)
    counted = words(call)
    assert counted["k.pointer"] == 2 * 24 * (37 + 50)
    assert counted["v.pointer"] == 2 * 20 * (37 + 50)
    alias = draw(12, [37, 50], [1, 2], heads=(8, 2), kind="alias", device=DEVICE)
    counted = words(alias)
    assert counted["k.pointer"] == 2 * 24 * (37 + 50)
    assert "v.pointer" not in counted


@interpreted_only
def test_windows_read_only_their_keys():
    call = draw(13, [90, 71], [1, 1], heads=(2, 1), device=DEVICE)
    call.options["mask"] = rb.Mask.sliding_window(20, 0, align="bottom-right")
    assert words(call)["k.pointer"] == 24 * 2 * 21
    check(call)


def test_results_do_not_depend_on_other_sequences_or_on_the_places_of_pages():
    call = draw(14, [20, 37, 41], [1, 2, 9], heads=(2, 1), dtype=torch.float32, device=DEVICE)
    together = run(call, prefix_pages=0)
    order = torch.randperm(len(call.k), device=DEVICE)
    place = torch.argsort(order)
    call.k, call.v = call.k[order], call.v[order]
    call.table = torch.where(call.table < len(place), place[call.table.clamp(max=len(place) - 1)], call.table)
    for x, y in zip(run(call, prefix_pages=0), together, strict=True):
        assert torch.equal(x, y)
    for b in range(3):
        alone = draw(14, [1], [1], heads=(2, 1), device=DEVICE)
        rows = slice(call.starts[b], call.starts[b + 1])
        alone.q, alone.k, alone.v, alone.table = call.q[rows], call.k, call.v, call.table[b : b + 1]
        alone.lengths, alone.starts = call.lengths[b : b + 1], [0, rows.stop - rows.start]
        for x, y in zip(run(alone), together, strict=True):
            assert torch.equal(x, y[rows])


def test_64_bit_offsets(monkeypatch):
    monkeypatch.setattr(paged_gpu.PagedTask, "wide", True)
    check(draw(15, [37, 20], [2, 1], device=DEVICE, options=["tree", "alibi"]))


@interpreted_only
def test_calls_that_do_not_fit_a_card_are_gathered(monkeypatch):
    def refuse(*request):
        raise Unplanned("paged", request[1], "float64", request[3], Launch("flash", ForwardTiles(16, 16)))

    monkeypatch.setattr(paged_gpu, "plan", refuse)
    with counting() as tally, pytest.warns(UserWarning, match="does not fit.* gathered instead"):
        check(draw(16, [7], [2], heads=(1, 1), device=DEVICE))
    assert "paged_forward" not in tally.launches
    assert tally.launches["flash_forward"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sinks", torch.zeros(3)),
        ("sinks", np.zeros(4)),
        ("alibi", torch.zeros(3, 4)),
        ("alibi", torch.zeros(5)),
        ("bias", torch.zeros(3, 1, 1, 40)),
        ("bias", torch.zeros(39)),
    ],
)
def test_options_that_do_not_fit_are_refused(name, value):
    call = draw(17, [40, 21], [3, 3], device=DEVICE)
    call.options[name] = value.to(DEVICE) if isinstance(value, torch.Tensor) else value
    with pytest.raises(rb.RedblueError, match=name):
        run(padded(call))


@given(st.data())
@examples(7)
def test_drawn_calls(data):
    group, kv_heads = data.draw(st.sampled_from([1, 3, 17])), data.draw(st.sampled_from([1, 2]))
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    queries = [data.draw(st.sampled_from([0, 1, 1, 2, 5])) for _ in lengths]
    page = data.draw(st.sampled_from([1, 2, 3, 5, 16, 32]))
    width = data.draw(st.sampled_from([(8, 8), (5, 24), (24, 17)]))
    kind = data.draw(st.sampled_from(["normal", "heads first", "one array", "alias"]))
    if kind == "alias":
        width = max(width), min(width)
    masks = data.draw(st.sampled_from([[], ["full"], ["window"], ["both sides"], ["tree"]]))
    others = data.draw(st.lists(st.sampled_from(["softcap", "sinks", "alibi of each"]), unique=True))
    full_pages = min((n // page for n in lengths), default=0)
    call = draw(
        data.draw(st.integers(0, 2**16)), lengths, queries, page=page, heads=(group * kv_heads, kv_heads),
        widths=width, kind=kind, shared=data.draw(st.integers(0, full_pages)), device=DEVICE,
        options=[*masks, *others],
    )  # fmt: skip
    check(call, prefix_pages=data.draw(st.sampled_from([None, 0])))
