"""Models of torchtitan train on a CPU, with packed documents, through PyTorch's op varlen_attn under flash_ops()."""

import warnings
from importlib import import_module

import pytest
from packaging.version import Version

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's compiler uses a deprecated function
    from torchtitan.models.common import attention

import redblue as rb
from support.examples import thorough
from support.flash_reference import reference

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # deepseek_v3 asks for float32

DOCUMENTS = [[7, 33, 24], [64], [1, 62, 1]]  # lengths, for each sequence of a batch


def by_reference(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, 0), **more):
    """Attention in float64, one document after the other; q, k, v: (tokens, heads, d)."""
    assert torch.equal(cu_seq_q, cu_seq_k)
    parts = []
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        document = (x[None, start:end] for x in (q, k, v))
        parts.append(reference(*document, window_size=window_size, softmax_scale=scale)[0][0])
    return torch.cat(parts).to(q.dtype)


def build(name):
    torch.manual_seed(0)
    registry = import_module(f"torchtitan.models.{name}").model_registry
    built = registry("debugmodel", attn_backend="varlen").model.build()
    built.init_states()
    return built


@pytest.fixture(scope="module", params=["llama3", thorough("qwen3"), "deepseek_v3"])
def model(request):
    if request.param == "deepseek_v3" and Version(torch.__version__) < Version("2.15"):
        pytest.skip("d 192, d_v 128")
    return build(request.param)


def batch():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2048, (len(DOCUMENTS), 65), generator=generator)
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in DOCUMENTS])
    return tokens[:, :-1], tokens[:, 1:], positions


def loss_of(model):
    tokens, targets, positions = batch()
    masks = model.get_attention_masks(positions)
    return torch.nn.functional.cross_entropy(model(tokens, positions, masks).flatten(0, 1), targets.flatten())


def test_loss_and_gradients_are_those_of_the_reference(model, monkeypatch):
    parameters = list(model.parameters())
    with rb.flash_ops():
        loss = loss_of(model)
        gradients = torch.autograd.grad(loss, parameters)
    monkeypatch.setattr(attention, "varlen_attn", by_reference)
    expected = loss_of(model)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)
    for gradient, right in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        assert (gradient - right).norm() <= 2e-2 * right.norm()


@pytest.mark.thorough
def test_a_model_learns(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with rb.flash_ops():
        for _ in range(10):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] - 2
