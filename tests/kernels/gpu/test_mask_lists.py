"""The cache of mask lists on the device: the lists that it keeps, and the order of eviction."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import redblue as rb
from redblue import RedblueError
from redblue.kernels.gpu import mask_lists

CPU = torch.device("cpu")
MASKS = [rb.Mask.from_dense(np.random.default_rng(i).random((64, 64)) < 0.5) for i in range(3)]
BITS = 64 * 64 // 8  # bytes of the bits of one mask; its other lists are small


@pytest.fixture(autouse=True)
def empty_cache():
    mask_lists.forget()
    yield
    mask_lists.forget()


def lists_of(i, rows=64, span=None):
    return mask_lists.lists(MASKS[i], 64, 64, 1, rows, 64, "rows", CPU, span)


def cached_masks():
    """The index in MASKS of each cached list's mask, the least recently used first."""
    return [MASKS.index(key.mask) for key in mask_lists._recent]


def test_lists_are_cached():
    assert lists_of(0) is lists_of(0)
    assert lists_of(0) is not lists_of(0, rows=32)
    mask_lists.forget()
    assert cached_masks() == []


@pytest.mark.parametrize("span", [64, 128, 4096])
def test_spans_that_hold_all_keys_share_one_entry(span):
    assert lists_of(0, span=span) is lists_of(0)
    assert len(cached_masks()) == 1


def test_a_shorter_span_has_lists_of_its_own():
    lists = mask_lists.lists(MASKS[0], 64, 64, 1, 64, 16, "rows", CPU, 32)
    assert lists.partial_starts.tolist() == [0, 2, 4]


def test_least_recently_used_lists_are_dropped_above_the_byte_limit(monkeypatch):
    monkeypatch.setattr(mask_lists, "KEPT_BYTES", 5 * BITS // 2)
    first, second = lists_of(0), lists_of(1)
    assert mask_lists._bytes(first) == pytest.approx(BITS, rel=0.1)
    lists_of(0)
    lists_of(2)
    assert cached_masks() == [0, 2]
    assert lists_of(0) is first
    assert lists_of(1) is not second


def test_lists_of_the_newest_mask_are_kept_at_any_size(monkeypatch):
    """Otherwise the two passes of one training step would evict each other's lists."""
    monkeypatch.setattr(mask_lists, "KEPT_BYTES", 1)
    lists_of(0)
    lists = lists_of(1), lists_of(1, rows=32)
    assert cached_masks() == [1, 1]
    assert all(x is y for x, y in zip((lists_of(1), lists_of(1, rows=32)), lists, strict=True))


def test_the_number_of_entries_is_limited(monkeypatch):
    monkeypatch.setattr(mask_lists, "KEPT", 2)
    for rows in (16, 32, 64):
        lists_of(0, rows)
    assert [key.rows for key in mask_lists._recent] == [32, 64]


@pytest.mark.parametrize("by", ["rows", "cols"])
def test_more_words_of_bits_than_32_bit_indices_reach_are_refused(monkeypatch, by):
    monkeypatch.setattr(mask_lists, "MAX_WORDS", 65)
    assert len(mask_lists.lists(MASKS[0], 64, 64, 1, 64, 64, by, CPU).bits) == 64
    mask_lists.forget()
    for mask in (MASKS[0], rb.Mask.per_head(MASKS[:2])):
        monkeypatch.setattr(mask_lists, "MAX_WORDS", 64 if mask is MASKS[0] else 128)
        with pytest.raises(RedblueError, match=r"take (64|128) words of bits"):
            mask_lists.lists(mask, 64, 64, 1, 64, 64, by, CPU)
