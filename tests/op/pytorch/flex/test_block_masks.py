"""BlockMasks in calls: exactness, refusals, and a single conversion per training loop."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import redblue as rb
from redblue.op.pytorch import dispatch
from redblue.op.pytorch.flex import block_masks
from support.flex import check, tensors

DOCUMENT = torch.tensor([0] * 40 + [1] + [2] * 31 + [3] * 28)
POINTS = torch.stack([torch.arange(100) // 10, torch.arange(100) % 10], 1)
LENGTHS = torch.tensor([33, 100])
SPECIAL = torch.tensor([0, 50, 77])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
MASK_MODS = {
    "causal": lambda b, h, i, j: i >= j,
    "strictly causal": lambda b, h, i, j: i > j,
    "window": flex.and_masks(lambda b, h, i, j: i >= j, lambda b, h, i, j: i - j < 9),
    "documents": lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j),
    "prefix LM": flex.or_masks(lambda b, h, i, j: j < 20, lambda b, h, i, j: i >= j),
    "padding": lambda b, h, i, j: j < LENGTHS[b],
    "window by head": lambda b, h, i, j: (i - j).abs() <= 3 * (h + 1),
    "all of both": lambda b, h, i, j: (j < LENGTHS[b]) & (i >= j + h),
    "neighbourhoods in two dimensions": lambda b, h, i, j: (POINTS[i] - POINTS[j]).abs().amax() <= 2,
    "distance in two dimensions": lambda b, h, i, j: ((POINTS[i] - POINTS[j]) ** 2).sum() <= 5,
    "special tokens": lambda b, h, i, j: (j == SPECIAL).any() | (i == j),
    "transfusion": lambda b, h, i, j: (i >= j) | ((i // 25 == j // 25) & (i // 25 == 2)),
    "dilated": lambda b, h, i, j: (i - j) % 3 == 0,
    "nothing": lambda b, h, i, j: i < 0,
    "everything": flex.noop_mask,
}


def created(name, n_q, n_k, block=(16, 32), **options):
    mod = MASK_MODS.get(name, name)
    mask = flex.create_block_mask(mod, 2, 4, n_q, n_k, device="cpu", BLOCK_SIZE=block, **options)
    return mask, flex.create_mask(mod, 2, 4, n_q, n_k, device="cpu")


@pytest.mark.parametrize("name", MASK_MODS)
@pytest.mark.parametrize(("n_q", "n_k"), [(45, 71), pytest.param(100, 100, marks=pytest.mark.thorough)])
def test_every_mask_mod(name, n_q, n_k):
    block_mask, keeps = created(name, n_q, n_k)
    check(*tensors(n_q, n_k, kv_heads=2), None, block_mask, keeps)


def test_masks_without_full_blocks():
    _, keeps = created("documents", 45, 71)
    partial, _ = flex._convert_mask_to_block_mask(keeps, 16, 32, separate_full_blocks=False)
    sizes = {"Q_BLOCK_SIZE": 16, "KV_BLOCK_SIZE": 32}
    mod = MASK_MODS["documents"]
    only_partial = flex._create_sparse_block_from_block_mask((partial, None), mod, (45, 71), **sizes)
    assert only_partial.full_kv_num_blocks is None
    check(*tensors(45, 71), None, only_partial, keeps)


def test_mask_mod_alone_is_respected():
    call = tensors(45, 71)
    blocks = flex._create_empty_block_mask(call[0], call[1])  # one block for all sizes
    out = rb.flex_attention(*call, block_mask=blocks)
    torch.testing.assert_close(out, rb.attention(*call))
    blocks.mask_mod = MASK_MODS["causal"]
    torch.testing.assert_close(rb.flex_attention(*call, block_mask=blocks), rb.attention(*call, mask=rb.Mask.causal()))
    other = tensors(100, 100)
    out = rb.flex_attention(*other, block_mask=blocks)
    torch.testing.assert_close(out, rb.attention(*other, mask=rb.Mask.causal()))


def test_only_partial_blocks_ask_the_mask_mod():
    full = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 2, dtype=torch.int32)
    partial = torch.ones(1, 1, 1, dtype=torch.int32), torch.tensor([[[[1, 0]]]], dtype=torch.int32)
    asked = []

    def mask_mod(b, h, i, j):
        asked.append(True)
        return j % 2 == 0

    blocks = flex.BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=8, mask_mod=mask_mod, seq_lengths=(8, 15))
    keeps = torch.ones(8, 15, dtype=torch.bool)
    keeps[:, 9::2] = False
    check(*tensors(8, 15), None, blocks, keeps)
    assert len(asked) == 1


def test_with_score_mods():
    block_mask, keeps = created("all of both", 100, 100)
    bias = torch.nn.Parameter(torch.randn(4, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    call = tensors(100, 100)
    check(*call, lambda s, b, h, i, j: 3 * torch.tanh(s / 3) + bias[h, i - j + 100], block_mask, keeps, (bias,))
    check(*call, lambda s, b, h, i, j: torch.where(i - j < 30, s * bias[h, i], -torch.inf), block_mask, keeps, (bias,))
    check(*call, lambda s, b, h, i, j: torch.where(j % 2 == 0, s + bias[h, i], -torch.inf), block_mask, keeps, (bias,))


@pytest.mark.parametrize("name", ["causal", "all of both", "prefix LM"])
def test_signed_alibi_needs_no_array_below_the_diagonal(name, monkeypatch):
    block_mask, keeps = created(name, 100, 100)
    calls = []
    attention = dispatch.attention
    monkeypatch.setattr(dispatch, "attention", lambda *a: calls.append(a[3]) or attention(*a))
    check(*tensors(100, 100), lambda s, b, h, i, j: s + SLOPES[h] * (j - i), block_mask, keeps)
    (options,) = calls
    assert (options.alibi is None) == (options.bias is not None) == (name == "prefix LM")


class Model:
    """An object with a method that a mask_mod calls."""

    def __init__(self):
        self.document = DOCUMENT.clone()
        self.unread = torch.zeros(3)

    def same(self, i, j):
        return self.document[i] == self.document[j]


def test_a_training_loop_converts_once(monkeypatch):
    read, converted = block_masks.read, []
    monkeypatch.setattr(block_masks, "read", lambda *a: converted.append(True) or read(*a))
    block_mask, _ = created("documents", 100, 100, block=16)
    call = tensors(100, 100)
    for _ in range(3):
        rb.flex_attention(*call, block_mask=block_mask).sum().backward()
    assert len(converted) == 1
    rb.flex_attention(*call, block_mask=created("documents", 100, 100)[0])
    assert len(converted) == 2


def test_another_mask_mod_is_seen():
    call = tensors(100, 100)
    mod = lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]  # noqa: E731
    block_mask = flex.create_block_mask(mod, None, None, 100, 100, device="cpu", BLOCK_SIZE=16)
    rb.flex_attention(*call, block_mask=block_mask)
    block_mask.mask_mod = MASK_MODS["causal"]
    with_other_mod = rb.flex_attention(*call, block_mask=block_mask)
    # The blocks stay, and partial blocks evaluate the new mask_mod
    documents = DOCUMENT[:, None] == DOCUMENT[None]
    blocks = torch.nn.functional.pad(documents, (0, 12, 0, 12)).view(7, 16, 7, 16).permute(0, 2, 1, 3)
    expected = blocks.clone()
    lower = torch.ones(112, 112, dtype=torch.bool).tril().view(7, 16, 7, 16).permute(0, 2, 1, 3)
    partial = blocks.any((2, 3)) & ~blocks.all((2, 3))
    expected[partial] = lower[partial]
    mask = rb.Mask.from_dense(expected.permute(0, 2, 1, 3).reshape(112, 112)[:100, :100].numpy())
    torch.testing.assert_close(with_other_mod, rb.attention(*call, mask=mask))


@pytest.mark.parametrize("kind", ["a global", "a closure", "a default", "a partial", "an object", "a module's buffer"])
def test_a_change_of_what_mask_mod_reads_is_seen(kind):
    table = DOCUMENT if kind == "a global" else DOCUMENT.clone()
    call = tensors(100, 100)
    block_mask = flex.create_block_mask(reading(kind, table), None, None, 100, 100, device="cpu", BLOCK_SIZE=128)
    before = rb.flex_attention(*call, block_mask=block_mask)
    torch.testing.assert_close(rb.flex_attention(*call, block_mask=block_mask), before, rtol=0, atol=0)
    old = table.clone()
    try:
        table[:50] = 7
        after = rb.flex_attention(*call, block_mask=block_mask)
        mask = rb.Mask.from_dense((table[:, None] == table[None]).numpy())
        torch.testing.assert_close(after, rb.attention(*call, mask=mask))
        assert (after - before).abs().max() > 0.01
    finally:
        table.copy_(old)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str)
def test_a_change_of_an_inference_tensor_is_seen(dtype, monkeypatch):
    """Inference tensors have no version that counts their changes."""
    read, conversions = block_masks.read, []
    monkeypatch.setattr(block_masks, "read", lambda *a: conversions.append(True) or read(*a))
    call = tensors(100, 100)
    with torch.inference_mode():
        table, width = torch.zeros(100, dtype=dtype), torch.tensor(100)
    for x in (table, width):
        assert x.is_inference()
    block_mask = flex.create_block_mask(
        lambda b, h, i, j: (table[i] == table[j]) & (i - j < width), None, None, 100, 100, device="cpu"
    )
    before = rb.flex_attention(*call, block_mask=block_mask)
    rb.flex_attention(*call, block_mask=block_mask)
    assert len(conversions) == 1
    for change in (lambda: table[50:].fill_(1), lambda: width.fill_(9)):
        with torch.inference_mode():
            change()
        after = rb.flex_attention(*call, block_mask=block_mask)
        rows = torch.arange(100)
        allowed = (table[:, None] == table[None]) & (rows[:, None] - rows < width)
        torch.testing.assert_close(after, rb.attention(*call, mask=rb.Mask.from_dense(allowed.numpy())))
        assert (after - before).abs().max() > 0.01
        before = after
    assert len(conversions) == 3
    monkeypatch.setattr(block_masks, "_content_of", lambda x: block_masks._UNREAD)  # as during the capture of a graph
    rb.flex_attention(*call, block_mask=block_mask)
    assert len(conversions) == 3


def test_contents_of_any_layout_are_read():
    with torch.inference_mode():
        whole = torch.randn(3, 4, dtype=torch.complex64)
        for x in (
            whole,
            whole.T,
            whole[:, ::2],
            whole.conj(),
            whole[0, 0],
            whole[:0],
            whole[0, :1].expand(3),
            whole[0, 0].expand(1),
        ):
            assert block_masks._content_of(x) == x.resolve_conj().numpy().tobytes()
        sparse = torch.eye(3).to_sparse()
        assert block_masks._content_of(sparse) != block_masks._content_of(sparse)


def reading(kind, table):
    if kind == "a global":
        return lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]
    if kind == "a closure":
        return flex.and_masks(lambda b, h, i, j: table[i] == table[j])
    if kind == "a default":
        return lambda b, h, i, j, table=table: table[i] == table[j]
    if kind == "a partial":
        return functools.partial(lambda table, b, h, i, j: table[i] == table[j], table)
    if kind == "an object":
        model = Model()
        model.document = table
        return lambda b, h, i, j: model.same(i, j)
    module = torch.nn.Module()
    module.register_buffer("table", table)
    return lambda b, h, i, j: module.table[i] == module.table[j]


class WithSlots:
    __slots__ = ("width",)


class WithHelper:
    def __init__(self):
        self.settings = types.SimpleNamespace(width=2)

    def width(self):
        return self.settings.width

    def mask_mod(self, b, h, i, j):
        return (i - j).abs() <= self.width()


def place_of_a_width(kind):
    """A mask_mod that reads a width, and the function that sets it."""
    if kind == "a method that calls another":
        model = WithHelper()
        return model.mask_mod, lambda width: setattr(model.settings, "width", width)
    if kind == "an item of an array":
        array = np.array([2])
        return lambda b, h, i, j: (i - j).abs() <= int(array[0]), lambda width: array.fill(width)
    if kind == "an item of a deque":
        queue = collections.deque([2])
        return lambda b, h, i, j: (i - j).abs() <= queue[0], lambda width: queue.__setitem__(0, width)
    if kind == "a number of NumPy's":
        width = np.int64(2)

        def change(new):
            nonlocal width
            width = None  # frees the number, whose address the next number may get
            width = np.int64(new)

        return lambda b, h, i, j: (i - j).abs() <= int(width), change
    place: Any = {
        "a slot": WithSlots(),
        "a class": type("Settings", (), {"width": 2}),
        "the class of an object": type("Settings", (), {"width": 2})(),
        "a module": types.ModuleType("settings"),
        "getattr": types.SimpleNamespace(),
    }[kind]
    if kind in ("a slot", "a module", "getattr"):
        place.width = 2
    owner = type(place) if kind == "the class of an object" else place
    if kind == "getattr":
        return lambda b, h, i, j: (i - j).abs() <= getattr(place, "width"), lambda width: setattr(owner, "width", width)  # noqa: B009
    return lambda b, h, i, j: (i - j).abs() <= place.width, lambda width: setattr(owner, "width", width)


PLACES = ["a method that calls another", "an item of an array", "an item of a deque", "a number of NumPy's", "a slot"]
PLACES += ["a class", "the class of an object", "a module", "getattr"]


@pytest.mark.parametrize("kind", PLACES)
def test_a_changed_number_is_seen_wherever_it_is(kind):
    mask_mod, change = place_of_a_width(kind)
    one_block = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    block_mask = flex.BlockMask.from_kv_blocks(*one_block, BLOCK_SIZE=128, mask_mod=mask_mod, seq_lengths=(100, 100))
    call = tensors(100, 100)
    for width in (2, 9):
        change(width)
        expected = rb.attention(*call, mask=rb.Mask.sliding_window(width, width))
        torch.testing.assert_close(rb.flex_attention(*call, block_mask=block_mask), expected)
    first = block_masks.converted(block_mask, 100, 100, torch.device("cpu"))
    assert block_masks.converted(block_mask, 100, 100, torch.device("cpu")) is first


def test_a_model_that_holds_its_block_mask_ends():
    model = WithHelper()
    model.block_mask = created("causal", 100, 100)[0]
    model.block_mask.mask_mod = model.mask_mod
    block_masks.converted(model.block_mask, 100, 100, torch.device("cpu"))
    block_mask = weakref.ref(model.block_mask)
    del model
    gc.collect()
    assert block_mask() is None


def test_only_what_mask_mod_reads_matters():
    model = Model()
    block_mask = flex.create_block_mask(
        lambda b, h, i, j: model.same(i, j), None, None, 100, 100, device="cpu", BLOCK_SIZE=16
    )
    first = block_masks.converted(block_mask, 100, 100, torch.device("cpu"))
    model.unread += 1  # in place, as an optimiser changes parameters
    assert block_masks.converted(block_mask, 100, 100, torch.device("cpu")) is first
    model.document[0] = 3
    assert block_masks.converted(block_mask, 100, 100, torch.device("cpu")) is not first


def test_the_conversion_goes_with_its_block_mask():
    block_mask, _ = created("documents", 100, 100)
    converted = weakref.ref(block_masks.converted(block_mask, 100, 100, torch.device("cpu")))
    gc.collect()
    assert converted() is not None
    del block_mask
    gc.collect()
    assert converted() is None


def test_what_is_refused():
    call = tensors(100, 100)
    block_mask, _ = created("causal", 100, 100)
    with pytest.raises(rb.RedblueError, match="block_mask is for 100 queries and 100 keys, but there are 45 and 71"):
        rb.flex_attention(*tensors(45, 71), block_mask=block_mask)
    with pytest.raises(rb.RedblueError, match="block_mask is a slice, which has no mask_mod: assign one"):
        rb.flex_attention(*call, block_mask=block_mask[:, :1])
    with pytest.raises(
        rb.RedblueError, match=r"block_mask must be a torch.*BlockMask, got Mask: use create_block_mask"
    ):
        rb.flex_attention(*call, block_mask=rb.Mask.causal())
    block_mask.mask_mod = lambda b, h, i, j: i >= j if i > 3 else j < 3
    with pytest.raises(rb.RedblueError, match="mask_mod cannot be evaluated for many pairs at once"):
        rb.flex_attention(*call, block_mask=block_mask)
    wrong = flex.create_block_mask(MASK_MODS["causal"], 3, None, 100, 100, device="cpu")
    with pytest.raises(rb.RedblueError, match="mask"):
        rb.flex_attention(*call, block_mask=wrong)
    other = flex.create_block_mask(MASK_MODS["causal"], None, None, 100, 100, device="cpu").to("meta")
    with pytest.raises(rb.RedblueError, match=r"block_mask must be on the device of query \(cpu\), got meta"):
        rb.flex_attention(*call, block_mask=other)


def test_a_slice_with_a_mask_mod_of_its_own():
    block_mask, _ = created("causal", 96, 96, block=(32, 32))
    part = block_mask[:, :, torch.tensor([1])]  # the second block of queries
    part.seq_lengths = (32, 96)
    part.mask_mod = lambda b, h, i, j: i + 32 >= j
    keeps = torch.from_numpy(np.arange(32)[:, None] + 32 >= np.arange(96)[None])
    check(*tensors(32, 96), None, part, keeps)
