"""The override reaches PyTorch's modules in eval mode, because it turns off their fast path, which bypasses it."""

import threading

import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue.op.pytorch.usage import Usage

mha = torch.backends.mha
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


@pytest.fixture(autouse=True)
def _restored():
    yield
    mha.set_fastpath_enabled(True)


def encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@torch.no_grad()
def test_attention_module():
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    wanted = module(x, x, x, need_weights=False)[0]
    with rb.sdpa() as used:
        assert (module(x, x, x, need_weights=False)[0] - wanted).abs().max() < 2e-6
    assert used == Usage(1)
    module(x, x, x, need_weights=False)
    assert used == Usage(1)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*nested tensors")  # PyTorch's fast path makes a nested tensor
@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
def test_encoder(padding):
    model, x = encoder(), torch.randn(2, 5, 16)
    wanted = model(x, src_key_padding_mask=padding)
    with rb.sdpa() as used:
        got = model(x, src_key_padding_mask=padding)
    assert used == Usage(2)
    rows = slice(None) if padding is None else ~padding  # the fast path gives 0 for padding
    assert (got[rows] - wanted[rows]).abs().max() < 1e-5


def test_gradients_in_eval_mode():
    model, x = encoder(), torch.randn(2, 5, 16)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(model(x).square().sum(), parameters)
    with rb.sdpa() as used:
        got = torch.autograd.grad(model(x).square().sum(), parameters)
    assert used == Usage(2)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() < 1e-4


@pytest.mark.parametrize("before", [True, False])
def test_the_setting_returns(before):
    mha.set_fastpath_enabled(before)
    with rb.sdpa():
        with rb.sdpa():
            assert not mha.get_fastpath_enabled()
        assert not mha.get_fastpath_enabled()
    assert mha.get_fastpath_enabled() is before


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_setting_made_inside_stays(before, inside):
    mha.set_fastpath_enabled(before)
    with rb.sdpa():
        mha.set_fastpath_enabled(inside)
        with rb.sdpa():
            assert mha.get_fastpath_enabled() is inside
    assert mha.get_fastpath_enabled() is inside


@torch.no_grad()
def test_an_explicit_fast_path_wins():
    module, x = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    with rb.sdpa() as used:
        mha.set_fastpath_enabled(True)
        module(x, x, x, need_weights=False)
    assert used == Usage()


def test_threads_that_enable_at_once():
    def work():
        for _ in range(50):
            with rb.sdpa():
                assert not mha.get_fastpath_enabled()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mha.get_fastpath_enabled() is True
