"""vLLM's cache as pages: views of its memory, and rows written at slots. Needs PyTorch only."""

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations.vllm.cache import pages_of, write


@pytest.mark.parametrize(("d", "d_v"), [(4, 4), (6, 2), (1, 3)])
def test_pages_are_views(d, d_v):
    """The keys of a head in a block lie before its values, each contiguous; other layers' memory may lie between."""
    memory = torch.arange(5 * 2 * 3 * 7 * (d + d_v)).view(5, 2, 3, 7, d + d_v)
    cache = memory[:, 1]  # the cache of one of two layers
    k, v = pages_of(cache, d)
    assert (tuple(k.shape), tuple(v.shape)) == ((5, 7, 3, d), (5, 7, 3, d_v))
    flat = cache.reshape(5, 3, -1)
    assert torch.equal(k[4, 2, 1], flat[4, 1, 2 * d : 3 * d])
    assert torch.equal(v[4, 2, 1], flat[4, 1, 7 * d + 2 * d_v : 7 * d + 3 * d_v])
    k.zero_()
    v.fill_(-1)
    assert memory[:, 1].sum() == -v.numel()
    assert (memory[:, 0] >= 0).all()


def test_other_caches_are_refused():
    for cache in (torch.zeros(2, 3, 4), torch.zeros(2, 2, 3, 4, 8), torch.zeros(5, 2, 4, 8)):
        with pytest.raises(RedblueError, match=r"kv_cache must be .* with d = 8, got"):
            pages_of(cache, 8)
    with pytest.raises(RedblueError, match="each head of a block contiguously"):
        pages_of(torch.zeros(5, 4, 2, 8).transpose(1, 2), 4)


@pytest.mark.parametrize("slots", [[], [11], [3, 8, 0, 19], [3, -1, 0, -1]])
def test_write(slots):
    """Rows are written at their slots and nowhere else; padded tokens, and those without a slot, are not written."""
    key, value = torch.randn(len(slots) + 1, 3, 2), torch.randn(len(slots) + 1, 3, 5)
    cache = torch.full((5, 3, 4, 7), float("nan"))
    write(key, value, cache, torch.tensor(slots, dtype=torch.int64))
    k, v = pages_of(cache, 2)
    for i, slot in enumerate(slots):
        if slot >= 0:
            assert torch.equal(k[slot // 4, slot % 4], key[i])
            assert torch.equal(v[slot // 4, slot % 4], value[i])
    assert (~cache.isnan()).sum() == sum(slot >= 0 for slot in slots) * 3 * 7


def test_a_slot_beyond_the_cache_is_refused():
    key = torch.zeros(1, 3, 2)
    with pytest.raises(IndexError):
        write(key, key, torch.zeros(5, 3, 4, 4), torch.tensor([20]))
