"""PyTorch's flash-attention ops on the CPU, for which redblue registers kernels."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.lab import reference
from redblue.op.pytorch.usage import Usage

aten = torch.ops.aten
OPS = (
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
)
SCHEMA = str(aten._flash_attention_forward.default._schema)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 4e-2, torch.float16: 6e-3}  # numbers of about 1

# An empty sequence, one without keys, and one with more queries than keys.
STARTS, KEY_STARTS = [0, 5, 5, 12, 20, 21], [0, 7, 9, 12, 30, 30]


def needs(option):
    return pytest.mark.skipif(option not in SCHEMA, reason=f"this PyTorch's op has no {option}")


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def packed(dtype=torch.float32):
    return randn(21, 4, 16, dtype=dtype), randn(30, 2, 16, dtype=dtype), randn(30, 2, 16, dtype=dtype, seed=1)


def padded(dtype=torch.float32):
    return tuple(randn(2, n, h, 16, dtype=dtype, seed=i) for i, (n, h) in enumerate(((9, 4), (11, 2), (11, 2))))


def int32(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def forward(q, k, v, starts=None, key_starts=None, dropout=0.0, causal=False, debug=False, **options):
    most = (q.shape[1], k.shape[1]) if starts is None else (10, 20)
    starts, key_starts = (None if x is None else int32(x) for x in (starts, key_starts))
    return aten._flash_attention_forward(q, k, v, starts, key_starts, *most, dropout, causal, debug, **options)


def expected(q, k, v, starts, key_starts, dout, left=-1, right=-1, **options):
    """Output, lse and gradients in float64, sequence by sequence, of tensors (total, heads, d)."""
    mask = rb.Mask.sliding_window(*(None if side < 0 else side for side in (left, right)), align="bottom-right")
    tensors = [x.detach().double().numpy().swapaxes(0, 1) for x in (q, k, v, dout)]
    parts = []
    for i, j, s, t in zip(starts, starts[1:], key_starts, key_starts[1:], strict=False):
        rows, keys = slice(i, j), slice(s, t)
        q1, k1, v1, g1 = tensors[0][:, rows], tensors[1][:, keys], tensors[2][:, keys], tensors[3][:, rows]
        attends = mask.to_dense(j - i, t - s)
        out, lse, *_ = reference.forward(q1, k1, v1, attends, **options)
        parts.append((out, lse[..., None], *reference.backward(q1, k1, v1, g1, attends, **options)[:3]))
    out, lse, *gradients = (np.concatenate(part, 1).swapaxes(0, 1) for part in zip(*parts, strict=True))
    return out, lse[..., 0].T, gradients


def close(got, wanted, tolerance):
    got = got.detach().double().numpy()
    assert got.shape == wanted.shape
    assert np.array_equal(np.isneginf(got), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    assert np.abs(got[finite] - wanted[finite]).max(initial=0) < tolerance * max(
        1.0, np.abs(wanted[finite]).max(initial=0)
    )


# Numbers -------------------------------------------------------------------------------------------------------------

WINDOWS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "left": ({"causal": True, "window_size_left": 3}, {"left": 3, "right": 0}),
    "both": ({"window_size_left": 2, "window_size_right": 1}, {"left": 2, "right": 1}),
    "scale": ({"scale": -0.3, "window_size_left": -1}, {"scale": -0.3}),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("options", "meaning"), WINDOWS.values(), ids=WINDOWS)
def test_packed(options, meaning, dtype):
    q, k, v = packed(dtype)
    dout = randn(21, 4, 16, dtype=dtype, seed=3).detach()
    with rb.flash_ops():
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS, **options)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    wanted, wanted_lse, wanted_gradients = expected(q, k, v, STARTS, KEY_STARTS, dout, **meaning)
    close(out, wanted, TOLERANCE[dtype])
    close(lse, wanted_lse, 1e-5)
    for x, y in zip(gradients, wanted_gradients, strict=True):
        close(x, y, TOLERANCE[dtype])


@pytest.mark.parametrize("sdpa", [False, True], ids=["flash", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
def test_padded(causal, sdpa):
    """Padded batches in both layouts, with any strides; each batch entry is a sequence."""
    inputs = padded()
    dout = randn(2, 9, 4, 16, seed=5).detach()
    with rb.flash_ops():
        if sdpa:
            across = (x.transpose(1, 2) for x in inputs)
            out, lse, starts, key_starts, n_q, n_k, *_ = aten._scaled_dot_product_flash_attention(*across, 0.0, causal)
            assert (starts, key_starts, n_q, n_k) == (None, None, 9, 11)
            out = out.transpose(1, 2)
        else:
            out, lse, *_ = forward(*inputs, causal=causal)
        gradients = torch.autograd.grad(out, inputs, dout)
    assert lse.shape == (2, 4, 9)
    for b in range(2):
        wanted, wanted_lse, wanted_gradients = expected(
            *(x[b] for x in inputs), [0, 9], [0, 11], dout[b], right=0 if causal else -1
        )
        close(out[b], wanted, TOLERANCE[torch.float32])
        close(lse[b], wanted_lse, 1e-5)
        for x, y in zip(gradients, wanted_gradients, strict=True):
            close(x[b], y, TOLERANCE[torch.float32])


def test_strides_are_those_that_compiled_graphs_expect():
    """Inputs are parts of one projection, for which empty_like is dense."""
    whole = torch.randn(2, 4, 9, 3, 16).permute(0, 2, 3, 1, 4)  # (batch, n, 3, heads, d), heads outside
    q, k, v = whole.unbind(2)
    with rb.flash_ops():
        out, lse, state, unused, _ = forward(q, k, v)
        gradients = aten._flash_attention_backward(
            torch.ones_like(out), q, k, v, out, lse, None, None, 9, 9, 0.0, False, state, unused
        )
    for x, y in ((q, out), *zip((q, k, v), gradients, strict=True)):
        assert y.stride() == torch.empty_like(x).stride()


def test_values_of_another_width():
    """In PyTorch 2.15 and later, the output is declared with the width of the values."""
    q, k, _ = packed()
    v = randn(30, 2, 10)
    dout = randn(21, 4, 10, seed=3).detach()
    padded_q, padded_k, _ = (x.transpose(1, 2) for x in padded())
    with rb.flash_ops():
        if torch.__version__ < (2, 15):
            with pytest.raises(rb.RedblueError, match=r"head dimension of query, 16, .* got 10"):
                forward(q, k, v, STARTS, KEY_STARTS)
            return
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
        other = aten._scaled_dot_product_flash_attention(padded_q, padded_k, padded_k[..., :10])[0]
    wanted, wanted_lse, wanted_gradients = expected(q, k, v, STARTS, KEY_STARTS, dout)
    for x, y in zip((out, lse, *gradients), (wanted, wanted_lse, *wanted_gradients), strict=True):
        close(x, y, 1e-5)
    meta = (x.to("meta") for x in (padded_q, padded_k, padded_k[..., :10]))
    assert other.stride() == aten._scaled_dot_product_flash_attention(*meta)[0].stride()


@pytest.mark.parametrize("starts", [[0], [0, 0], [0, 0, 0]])
def test_nothing(starts):
    q, k = torch.empty(0, 2, 8), torch.empty(0, 2, 8)
    with rb.flash_ops():
        out, lse, *_ = forward(q, k, k, starts, starts)
        assert (out.shape, lse.shape) == ((0, 2, 8), (2, 0))
        if "num_splits" in SCHEMA:
            assert forward(q, k, k, starts, starts, num_splits=1)[0].shape == (0, 2, 8)


def test_a_block_of_keys_of_a_ring():
    """Ring attention gives the backward op the output and lse of all keys, and one block of them."""
    q, k, v = padded()
    dout = randn(2, 9, 4, 16, seed=7).detach()
    empty = torch.empty(0)
    with rb.flash_ops():
        out, lse, state, *_ = forward(q, k, v)
        whole = torch.autograd.grad(out, (q, k, v), dout)
        blocks = [
            aten._flash_attention_backward(
                dout, q, k[:, part], v[:, part], out, lse, None, None, 9, 5, 0.0, False, state, empty
            )
            for part in (slice(0, 5), slice(5, 11))
        ]
    assert (blocks[0][0] + blocks[1][0] - whole[0]).abs().max() < 1e-6
    for i in (1, 2):
        assert (torch.cat([block[i] for block in blocks], 1) - whole[i]).abs().max() < 1e-6


# Dropout -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "padded", "sdpa"])
def test_dropout(layout):
    """The backward op drops the same pairs as the forward op: out is linear in v, so v's gradient yields out again."""

    def run(q, k, v):
        if layout == "packed":
            return forward(q, k, v, STARTS, KEY_STARTS, dropout=0.4)[0]
        if layout == "padded":
            return forward(q, k, v, dropout=0.4)[0]
        return aten._scaled_dot_product_flash_attention(*(x.transpose(1, 2) for x in (q, k, v)), 0.4)[0]

    inputs = packed() if layout == "packed" else padded()
    with rb.flash_ops():
        torch.manual_seed(1)
        out = run(*inputs)
        (dv,) = torch.autograd.grad(out, inputs[2], weight := torch.randn(out.shape), retain_graph=True)
        assert torch.allclose((dv * inputs[2]).sum(), (out * weight).sum(), rtol=1e-4)
        torch.manual_seed(1)
        assert torch.equal(run(*inputs), out)
        assert not torch.equal(run(*inputs), out)


# Caches, pages, alibi and splits -------------------------------------------------------------------------------------


@needs("block_table")
def test_pages():
    q, pool, values = randn(21, 4, 16), randn(7, 4, 2, 16), randn(7, 4, 2, 16, seed=1)
    table, used = [[3, 1], [0, 0], [5, 2], [6, 4], [6, 6]], [7, 0, 5, 8, 1]
    k, v = (torch.cat([x[row].flatten(0, 1)[:n] for row, n in zip(table, used, strict=True)]) for x in (pool, values))
    starts = np.append(0, np.cumsum(used)).tolist()
    wanted, lse, _ = expected(q, k, v, STARTS, starts, torch.zeros(21, 4, 16), right=0)
    options = {"seqused_k": int32(used), "block_table": int32(table), "causal": True}
    with rb.flash_ops(), torch.no_grad():
        close(forward(q, pool, values, STARTS, None, **options)[0], wanted, 4e-6)
        close(forward(q, pool, values, STARTS, None, **options)[1], lse, 1e-5)
        with pytest.raises(rb.RedblueError, match=r"block_table\[1, 0\] must be a page, 0 to 6, got 7"):
            forward(
                q,
                pool,
                values,
                STARTS,
                None,
                seqused_k=int32([7, 1, 5, 8, 1]),
                block_table=int32([[7, 7]] * 5).where(torch.arange(5)[:, None] == 1, int32(table)),
            )
        with pytest.raises(rb.RedblueError, match=r"block_table has 2 pages .* seqused_k\[0\] = 9 keys need 3"):
            forward(q, pool, values, STARTS, None, seqused_k=int32([9, 0, 5, 8, 1]), block_table=int32(table))
        with pytest.raises(rb.RedblueError, match="block_table needs seqused_k"):
            forward(q, pool, values, STARTS, None, block_table=int32(table))
        with pytest.raises(rb.RedblueError, match="block_table must be whole numbers"):
            forward(q, pool, values, STARTS, None, seqused_k=int32(used), block_table=int32(table[:2]))
        with pytest.raises(rb.RedblueError, match=r"\(pages, page size, heads, d\)"):
            forward(q, k, v, STARTS, None, seqused_k=int32(used), block_table=int32(table))


@needs("seqused_k")
def test_used_part_of_the_keys():
    q, k, v = packed()
    used = [3, 0, 3, 18, 0]
    rows = np.concatenate([np.arange(s, s + n) for s, n in zip(KEY_STARTS, used, strict=False)])
    starts = np.append(0, np.cumsum(used)).tolist()
    wanted, _, _ = expected(q, k[rows], v[rows], STARTS, starts, torch.zeros(21, 4, 16), right=0)
    with rb.flash_ops(), torch.no_grad():
        close(forward(q, k, v, STARTS, KEY_STARTS, causal=True, seqused_k=int32(used))[0], wanted, 4e-6)
        with pytest.raises(rb.RedblueError, match=r"seqused_k\[1\] must be 0 to 2"):
            forward(q, k, v, STARTS, KEY_STARTS, seqused_k=int32([0, 3, 0, 0, 0]))
        with pytest.raises(rb.RedblueError, match="seqused_k must have one entry for each of 5 sequences, got 2"):
            forward(q, k, v, STARTS, KEY_STARTS, seqused_k=int32([0, 3]))
        with pytest.raises(rb.RedblueError, match="padded"):
            forward(*padded(), seqused_k=int32([1, 1]))


@needs("alibi_slopes")
@pytest.mark.parametrize("own", [False, True], ids=["heads", "sequences"])
def test_alibi(own):
    slopes = torch.linspace(0.1, 0.8, 20).reshape(5, 4) if own else torch.tensor([0.5, 0.25, 0.1, 0.0])
    q, k, v = packed()
    with rb.flash_ops(), torch.no_grad():
        out, lse, *_ = forward(q, k, v, STARTS, KEY_STARTS, causal=True, alibi_slopes=slopes)
        two = slopes[:2] if own else slopes
        of_batch = forward(*padded(), alibi_slopes=two)[0]
        with pytest.raises(rb.RedblueError, match=r"alibi_slopes must be \(4,\) or \(5, 4\), got \(3,\)"):
            forward(q, k, v, STARTS, KEY_STARTS, alibi_slopes=torch.ones(3))
        with pytest.raises(rb.RedblueError, match=r"alibi_slopes .* dropout_p must be 0"):
            forward(q, k, v, STARTS, KEY_STARTS, alibi_slopes=slopes, dropout=0.1)
    for i in range(5):
        rows, keys = slice(STARTS[i], STARTS[i + 1]), slice(KEY_STARTS[i], KEY_STARTS[i + 1])
        part = q[rows], k[keys], v[keys]
        slope = (slopes[i] if own else slopes).double().numpy()
        sizes = [0, rows.stop - rows.start], [0, keys.stop - keys.start]
        wanted, wanted_lse, _ = expected(*part, *sizes, torch.zeros_like(part[0]), right=0, alibi=slope)
        close(out[rows], wanted, 4e-6)
        close(lse[:, rows], wanted_lse, 1e-5)
    for b, entry in enumerate(zip(*padded(), strict=True)):
        slope = (slopes[b] if own else slopes).double().numpy()
        close(of_batch[b], expected(*entry, [0, 9], [0, 11], torch.zeros(9, 4, 16), alibi=slope)[0], 4e-6)


@needs("num_splits")
def test_one_split_makes_a_sequence_independent_of_the_others():
    q, k, v = randn(75, 4, 16), randn(300, 2, 16), randn(300, 2, 16, seed=1)
    starts, key_starts = int32([0, 1, 38, 75]), int32([0, 90, 127, 300])
    batch = tuple(x[:1].expand(3, -1, -1, -1) for x in padded())
    with rb.flash_ops(), torch.no_grad():
        several = aten._flash_attention_forward(q, k, v, starts, key_starts, 50, 200, 0.0, True, False, num_splits=1)
        one = aten._flash_attention_forward(
            q[38:], k[127:], v[127:], int32([0, 37]), int32([0, 173]), 50, 200, 0.0, True, False, num_splits=1
        )
        assert torch.equal(several[0][38:], one[0])
        assert torch.equal(several[1][:, 38:], one[1])
        assert torch.equal(forward(*batch, num_splits=1)[0][2:], forward(*(x[:1] for x in batch), num_splits=1)[0])
        with pytest.raises(rb.RedblueError, match="num_splits must be 0"):
            forward(*batch, num_splits=-1)
        with pytest.raises(rb.RedblueError, match="num_splits=1 is for inference only"):
            forward(*batch, num_splits=1, dropout=0.5)


# Refusals ------------------------------------------------------------------------------------------------------------

ROWS = torch.zeros(4, 2, 8)
REFUSED = {
    "float64": ("query must be of type float32.*float64", lambda: forward(*(torch.zeros(1, 4, 2, 8).double(),) * 3)),
    "debug mask": ("return_debug_mask", lambda: forward(*(torch.zeros(1, 4, 2, 8),) * 3, debug=True)),
    "rank": ("query must have 4 dimensions", lambda: forward(ROWS, ROWS, ROWS)),
    "packed rank": ("key must have 3 dimensions", lambda: forward(ROWS, ROWS[0], ROWS, [0, 4], [0, 4])),
    "one of two": ("packed sequences need", lambda: forward(ROWS, ROWS, ROWS, [0, 4])),
    "the other": ("packed sequences need", lambda: forward(ROWS, ROWS, ROWS, None, [0, 4])),
    "end": ("cum_seq_q must end with the rows of query, 4", lambda: forward(ROWS, ROWS, ROWS, [0, 3], [0, 4])),
    "sequences": ("cum_seq_k must be for as many", lambda: forward(ROWS, ROWS, ROWS, [0, 4], [0, 2, 4])),
    "longest": (
        "max_k must be at least .*, 21, got 20",
        lambda: forward(ROWS, *[torch.zeros(21, 2, 8)] * 2, [0, 4], [0, 21]),
    ),
    "batch": ("equal leading dimensions", lambda: forward(torch.zeros(2, 4, 2, 8), *[torch.zeros(1, 4, 2, 8)] * 2)),
    "debug mask of sdpa": (
        "return_debug_mask",
        lambda: aten._scaled_dot_product_flash_attention(*(torch.zeros(1, 2, 4, 8),) * 3, 0.0, False, True),
    ),
    "no seed": (
        "rng_state",
        lambda: aten._flash_attention_backward(
            *[ROWS[None]] * 5, torch.zeros(1, 2, 4), None, None, 4, 4, 0.5, False, torch.empty(0), torch.empty(0)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(message, call):
    with rb.flash_ops() as used, pytest.raises(rb.RedblueError, match=message):
        call()
    assert used.served == 0
    assert used.refused == (message != "rng_state")  # only forward ops count


@pytest.mark.parametrize("option", [x for x in ("seqused_k", "alibi_slopes") if x in SCHEMA])
def test_options_without_gradient(option):
    q, k, v = packed()
    value = {"seqused_k": int32([1] * 5), "alibi_slopes": torch.ones(4)}[option]
    with rb.flash_ops(), pytest.raises(rb.RedblueError, match=f"{option} is for inference only"):
        forward(q, k, v, STARTS, KEY_STARTS, **{option: value})


# The switch ----------------------------------------------------------------------------------------------------------


def test_in_force_while_requested():
    before = {name: torch._C._dispatch_dump(f"aten::{name}") for name in OPS}
    q, k, v = (x.detach() for x in padded())
    with pytest.raises(NotImplementedError):
        forward(q, k, v)
    override = rb.enable_flash_ops()
    with rb.flash_ops() as used:
        thread = threading.Thread(target=forward, args=(q, k, v))
        thread.start()
        thread.join()
        torch.nn.functional.scaled_dot_product_attention(q, q, q)  # does not call these ops
    assert used == Usage(1)
    with torch.inference_mode():
        forward(q, k, v)
    override.disable()
    assert override.used == Usage(2)
    with pytest.raises(NotImplementedError):
        forward(q, k, v)
    assert before == {name: torch._C._dispatch_dump(f"aten::{name}") for name in OPS}


def test_both_overrides_at_once():
    q = torch.randn(1, 2, 4, 8)
    with rb.sdpa() as ours, rb.flash_ops() as flash:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        aten._scaled_dot_product_flash_attention(q, q, q)
    assert (ours, flash) == (Usage(1), Usage(1))


def test_transforms():
    q, k, v = (x.detach() for x in padded())

    def loss(q, k, v):
        return forward(q, k, v, causal=True)[0].sin().sum()

    with rb.flash_ops():
        gradients = torch.func.grad(loss, (0, 1, 2))(q, k, v)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        for x, y in zip(gradients, torch.autograd.grad(loss(*inputs), inputs), strict=True):
            assert torch.equal(x, y)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # warnings of PyTorch's compiler
def test_compiled():
    q, k, v = padded()

    def run(q, k, v):
        out, lse, *_ = forward(q, k, v, causal=True, window_size_left=4)
        across = (x.transpose(1, 2) for x in (q, k, v))
        out2, lse2, *_ = aten._scaled_dot_product_flash_attention(*across, 0.0, True)
        return (out.sin() + lse.mT[..., None]) * (out2.cos() + lse2[..., None]).transpose(1, 2)

    def dropped(q, k, v):
        return forward(q, k, v, dropout=0.5)[0]

    with rb.flash_ops():
        outputs = [f(q, k, v) for f in (run, torch.compile(run, fullgraph=True))]
        gradients = [torch.autograd.grad(out.sum(), (q, k, v)) for out in outputs]
        for x, y in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1]), strict=True):
            assert (x - y).abs().max() < 1e-5
        compiled = torch.compile(dropped, fullgraph=True, backend="aot_eager")
        assert not torch.equal(compiled(q, k, v), compiled(q, k, v))
        out = compiled(q, k, v)
        (dv,) = torch.autograd.grad(out.sum(), v)
        assert torch.allclose((dv * v).sum(), out.sum(), rtol=1e-4)
