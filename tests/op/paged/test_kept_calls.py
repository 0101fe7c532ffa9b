"""Reused checks of paged calls and writes: every difference from the earlier call is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import redblue as rb
from redblue.base.errors import RedblueError
from redblue.op.paged import append, cpu, known_tables

torch = pytest.importorskip("torch")

H, H_KV, D, PAGE, PAGES = 4, 2, 8, 4, 12
TABLE, LENGTHS = torch.tensor([[3, 5], [0, 7]]), torch.tensor([6, 3])
LIBRARIES = pytest.mark.parametrize("library", ["torch", "numpy"])


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(known_tables, "_kept", ())


def normal(seed: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def call(seed: int) -> tuple[Any, ...]:
    """q, pages of keys and of values."""
    return normal(seed, 2, 1, H, D), normal(seed + 1, PAGES, PAGE, H_KV, D), normal(seed + 2, PAGES, PAGE, H_KV, D)


def of(library: str, *tensors: Any) -> list[Any]:
    return [x if library == "torch" else x.numpy() for x in tensors]


def same_as_afresh(*arguments: Any, **options: Any) -> None:
    """Compare a call that uses kept checks with one that does not, bit by bit."""
    ours = rb.attention_paged(*arguments, **options)
    kept = known_tables._kept
    known_tables._kept = ()
    afresh = rb.attention_paged(*arguments, **options)
    known_tables._kept = kept
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(afresh))


@LIBRARIES
def test_layers_share_what_is_known_of_one_table(library, monkeypatch):
    made = []
    ready = cpu.ready
    monkeypatch.setattr(cpu, "ready", lambda *arguments: made.append(arguments) or ready(*arguments))
    for layer in range(3):
        same_as_afresh(*of(library, *call(10 * layer), TABLE, LENGTHS))
    assert len(made) == 1 + 3  # once for the layers, and three times without reuse


@LIBRARIES
def test_other_strides_places_and_options_are_other_calls(library):
    q, k, v = call(0)
    both = torch.stack([k, v], -1).flatten(-2)
    wide = normal(9, 2, 3, H, D)
    calls = [
        ((q, k, v), {}),
        ((q, k, k), {}),
        ((q, both[..., :D], both[..., D:]), {}),  # columns of one cache
        ((q, both[..., ::2], both[..., 1::2]), {}),
        ((q, k.transpose(1, 2).contiguous().transpose(1, 2), v), {}),
        ((wide[:, 1:2], k, v), {}),
        ((wide[:, :2], k, v), {}),
        ((wide[:, ::2], k, v), {}),  # q is copied, because its rows have no common stride
        ((q, k, v), {"scale": 0.5}),
        ((q, k, v), {"softcap": 2.0}),
        ((q, k, v), {"mask": rb.Mask.sliding_window(2, 0, align="bottom-right")}),
        ((q, k, v), {"prefix_pages": 0}),
    ]
    for _ in range(2):
        for arrays, options in calls:
            same_as_afresh(*of(library, *arrays, TABLE, LENGTHS), **options)


def test_the_log_sum_exps_of_a_kept_call():
    q, k, v = call(0)
    out = rb.attention_paged(q, k, v, TABLE, LENGTHS)
    again, lse = rb.attention_paged(q, k, v, TABLE, LENGTHS, return_lse=True)
    assert torch.equal(out, again)
    known_tables._kept = ()
    assert torch.equal(lse, rb.attention_paged(q, k, v, TABLE, LENGTHS, return_lse=True)[1])


def test_what_is_refused_stays_refused():
    q, k, v = call(0)
    attend: Any = rb.attention_paged
    attend(q, k, v, TABLE, LENGTHS, scale=1.0, prefix_pages=0)
    with pytest.raises(RedblueError, match="scale must be a number, got True"):
        attend(q, k, v, TABLE, LENGTHS, scale=True, prefix_pages=0)
    with pytest.raises(RedblueError, match="prefix_pages must be"):
        attend(q, k, v, TABLE, LENGTHS, scale=1.0, prefix_pages=False)
    with pytest.raises(RedblueError, match="q requires a gradient"):
        attend(q.clone().requires_grad_(), k, v, TABLE, LENGTHS, scale=1.0, prefix_pages=0)
    with pytest.raises(RedblueError, match="page_table"):
        attend(q, k[:5], v[:5], TABLE, LENGTHS, scale=1.0, prefix_pages=0)


# Writes -------------------------------------------------------------------------------------------------------------


@LIBRARIES
def test_layers_share_what_is_known_of_one_write(library, monkeypatch):
    made = []
    target = append._target
    monkeypatch.setattr(append, "_target", lambda *arguments: made.append(arguments) or target(*arguments))
    for layer in range(3):
        _, k_pages, v_pages = (x.clone() for x in call(layer))
        new, wanted = normal(layer, 2, 2, H_KV, D), k_pages.clone()
        for b, i in np.ndindex(2, 2):
            position = int(LENGTHS[b]) + i
            wanted[TABLE[b, position // PAGE], position % PAGE] = new[b, i]
        ends = rb.append_paged(*of(library, new, -new, k_pages, v_pages, TABLE, LENGTHS))
        assert ends.tolist() == [8, 5]
        ends[:] = -1  # the caller's array
        assert torch.equal(k_pages, wanted)
        assert int((v_pages != call(layer)[2]).sum()) == new.numel()
    assert len(made) == 2


def test_a_kept_write_compares_columns_of_keys_each_time():
    pages, new = normal(0, PAGES, PAGE, H_KV, D), normal(1, 2, 1, H_KV, D)
    for _ in range(2):
        rb.append_paged(new, new[..., :3], pages, pages[..., :3], TABLE, LENGTHS)
        rb.append_paged(new, new[..., :3].clone(), pages, pages[..., :3], TABLE, LENGTHS)
    before = pages.clone()
    with pytest.raises(RedblueError, match="v must be columns 0 to 2 of k"):
        rb.append_paged(2 * new, new[..., :3].clone(), pages, pages[..., :3], TABLE, LENGTHS)
    assert torch.equal(pages, before)


def test_a_kept_write_copies_keys_that_lie_in_the_cache():
    _, k_pages, v_pages = call(0)
    rb.append_paged(normal(1, 2, 1, H_KV, D), normal(2, 2, 1, H_KV, D), k_pages, v_pages, TABLE, LENGTHS)
    inside = k_pages.view(-1, 1, H_KV, D)[5 * PAGE + 2 : 5 * PAGE + 4]  # its first row is the row of the first new key
    wanted = inside.clone()
    rb.append_paged(inside, inside, k_pages, v_pages, TABLE, LENGTHS)
    assert torch.equal(k_pages[5, 2], wanted[0, 0])
    assert torch.equal(v_pages[0, 3], wanted[1, 0])


def test_a_kept_write_refuses_caches_that_cannot_be_written():
    new, k_pages, v_pages = (x.numpy().copy() for x in (normal(0, 2, 1, H_KV, D), *call(0)[1:]))
    rb.append_paged(new, new, k_pages, v_pages, TABLE, LENGTHS)
    k_pages.flags.writeable = False
    with pytest.raises(RedblueError, match="k_pages must be writable"):
        rb.append_paged(new, new, k_pages, v_pages, TABLE, LENGTHS)


def test_autograd_sees_a_write():
    new, (_, k_pages, v_pages) = normal(0, 2, 1, H_KV, D), call(0)
    weight = torch.ones(D, requires_grad=True)
    product = (k_pages * weight).sum()
    rb.append_paged(new, new, k_pages, v_pages, TABLE, LENGTHS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@LIBRARIES
def test_many_rows_are_written_by_all_threads(library):
    tokens, heads, d = 3000, 2, 65
    k_pages, v_pages = torch.zeros(2, 200, 16, heads, d)
    new, table = normal(0, 1, tokens, heads, d), torch.arange(200)[None].flip(1)
    strided = new.transpose(2, 3).contiguous().transpose(2, 3)
    k, v, *caches = of(library, strided, new, k_pages, v_pages)
    rb.append_paged(k, v, caches[0], caches[1], table, [0])
    for pages in (k_pages, v_pages):
        assert torch.equal(pages.flip(0).flatten(0, 1)[:tokens], new[0])
