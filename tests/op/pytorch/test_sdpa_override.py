"""F.scaled_dot_product_attention of unmodified models through redblue."""

import subprocess
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812

import redblue as rb
from redblue.kernels.cpu import call as cpu

TOLERANCE = 2e-6  # float32, numbers of about 1


@pytest.fixture
def calls(monkeypatch):
    """Count the runs of each pass of the kernel."""
    count = {"forward": 0, "backward": 0}

    def counted(name, kernel):
        def run(*args, **kwargs):
            count[name] += 1
            return kernel(*args, **kwargs)

        return run

    for name in count:
        monkeypatch.setattr(cpu, name, counted(name, getattr(cpu, name)))
    return count


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.randn(2, 3, 6, 8, requires_grad=True)


def attend(q):
    return F.scaled_dot_product_attention(q, q, q)


def test_blocks_nest_and_undo(q, calls):
    attend(q)
    assert calls["forward"] == 0
    with rb.sdpa():
        with rb.sdpa():
            attend(q)
        attend(q)
    assert calls["forward"] == 2
    attend(q)
    assert calls["forward"] == 2


def test_enabled_until_the_last_is_disabled(q, calls):
    first, second = rb.enable_sdpa(), rb.enable_sdpa()
    try:
        first.disable()
        first.disable()
        attend(q)
        assert calls["forward"] == 1
    finally:
        second.disable()
    attend(q)
    assert calls["forward"] == 1


@pytest.mark.parametrize("fails_at", ["CPU", "AutogradCUDA"])
def test_an_override_that_fails_half_way_leaves_nothing(q, calls, monkeypatch, fails_at):
    before = torch._C._dispatch_dump("aten::scaled_dot_product_attention")
    impl = torch.library.Library.impl

    def failing(self, name, function, key, **more):
        if key == fails_at:
            raise OSError(fails_at)
        return impl(self, name, function, key, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch.library.Library, "impl", failing)
        with pytest.raises(OSError, match=fails_at):
            rb.enable_sdpa()
    assert torch._C._dispatch_dump("aten::scaled_dot_product_attention") == before
    attend(q)
    assert calls["forward"] == 0
    with rb.sdpa():
        attend(q)
    assert calls["forward"] == 1
    assert torch._C._dispatch_dump("aten::scaled_dot_product_attention") == before


def test_undone_by_an_exception(q, calls):
    with pytest.raises(ZeroDivisionError), rb.sdpa():
        raise ZeroDivisionError
    attend(q)
    assert calls["forward"] == 0


def test_every_thread_and_every_name(q, calls):
    from torch.nn.functional import scaled_dot_product_attention as imported_by_name

    with rb.sdpa():
        thread = threading.Thread(target=attend, args=(q,))
        thread.start()
        thread.join()
        imported_by_name(q, q, q)
        torch.ops.aten.scaled_dot_product_attention(q, q, q)
        torch._C._nn.scaled_dot_product_attention(q, q, q)
        with torch.no_grad():
            attend(q)
        with torch.inference_mode():
            attend(q)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert attend(q).dtype == torch.bfloat16
    assert calls["forward"] == 7


def test_threads_that_enable_at_once(q, calls):
    def work():
        for _ in range(20):
            with rb.sdpa():
                attend(q.detach())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls["forward"] == 80
    attend(q)
    assert calls["forward"] == 80


CALLS = {
    "plain": ((2, 3, 5, 4), (2, 3, 7, 4), {}),
    "causal": ((2, 3, 5, 4), (2, 3, 7, 4), {"is_causal": True}),
    "scale": ((2, 3, 5, 4), (2, 3, 7, 4), {"scale": -0.7}),
    "grouped": ((2, 6, 5, 4), (2, 2, 7, 4), {"enable_gqa": True}),
    "2-D": ((5, 4), (7, 4), {}),
    "3-D": ((3, 5, 4), (3, 7, 4), {}),
    "5-D": ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), {}),
    "added": ((2, 3, 5, 4), (2, 3, 7, 4), {"attn_mask": torch.linspace(-1, 1, 35).reshape(5, 7)}),
    "masked": ((2, 3, 5, 4), (2, 3, 7, 4), {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0}),
}


@pytest.mark.parametrize(("q", "k", "options"), CALLS.values(), ids=CALLS)
def test_the_same_numbers(q, k, options, calls):
    inputs = [torch.randn(shape, requires_grad=True) for shape in (q, k, k)]
    theirs = F.scaled_dot_product_attention(*inputs, **options)
    with rb.sdpa():
        ours = F.scaled_dot_product_attention(*inputs, **options)
    assert calls["forward"] == 1
    assert (ours - theirs).abs().max() < TOLERANCE
    for x, y in zip(*(torch.autograd.grad(out.sin().sum(), inputs) for out in (ours, theirs)), strict=True):
        assert (x - y).abs().max() < TOLERANCE
    assert calls["backward"] == 1


def test_dropout_is_reproducible(q, calls):
    with rb.sdpa():
        torch.manual_seed(3)
        a = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        torch.manual_seed(3)
        b = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert calls["forward"] == 2
    assert torch.equal(a, b)
    assert not torch.equal(a, attend(q))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's kernel lacks a batching rule
def test_unsupported_calls_stay_with_pytorch(q, calls):
    wide, meta = torch.randn(1, 1, 2, 4100), torch.empty(2, 3, 6, 8, device="meta")
    with warnings.catch_warnings():  # PyTorch warns once per process that nested tensors are a prototype
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(3, 5, 8), torch.randn(3, 4, 8)])
    x = q.detach()

    def work():
        batched = torch.func.vmap(attend)(x)
        gradient = torch.func.grad(lambda q: attend(q).sin().sum())(x)
        return attend(wide), attend(nested).to_padded_tensor(0.0), batched, gradient

    expected = work()
    with rb.sdpa():
        got = work()
        assert attend(meta).shape == meta.shape
        with pytest.raises(RuntimeError, match="attn_mask") as raised:
            F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(6, 6, dtype=torch.int64))
        assert not isinstance(raised.value, rb.RedblueError)
        assert raised.value.__context__ is None
    assert calls["forward"] == 0
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)


# Whole models ------------------------------------------------------------------------------------------------------


def check_model(model, loss, calls, layers):
    """Compare loss, gradients and one training step with PyTorch's; redblue computes all attention."""
    results = []
    state = {name: x.clone() for name, x in model.state_dict().items()}
    for ours in (False, True):
        model.load_state_dict(state)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        optimiser.zero_grad()
        if ours:
            with rb.sdpa():
                value = loss(model)
                value.backward()
        else:
            value = loss(model)
            value.backward()
        assert calls == {"forward": layers * ours, "backward": layers * ours}
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimiser.step()
        results.append([value.detach(), *gradients, *(p.detach().clone() for p in model.parameters())])
    for x, y in zip(*results, strict=True):
        assert (x - y).abs().max() <= 1e-5 * max(1.0, float(x.abs().max()))


def test_transformer_encoder(calls):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 2), torch.randn(3, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    check_model(model, lambda m: m(x, src_key_padding_mask=padding).square().mean(), calls, layers=2)


def test_multihead_attention(calls):
    torch.manual_seed(0)
    model, x, y = torch.nn.MultiheadAttention(16, 4), torch.randn(5, 2, 16), torch.randn(7, 2, 16)
    check_model(model, lambda m: m(x, y, y, need_weights=False)[0].square().mean(), calls, layers=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_transformers(name, calls):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shared = {"vocab_size": 31, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "sdpa"}
    if name == "GPT2":
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
        off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **off, **shared))
    else:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=32, **heads, **shared)
        model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 31, (2, 9))
    padded = torch.ones_like(ids)
    padded[1, :3] = 0
    check_model(model, lambda m: m(input_ids=ids, attention_mask=padded, labels=ids).loss, calls, layers=2)


@pytest.mark.thorough
def test_importing_redblue_changes_nothing_and_imports_no_pytorch():
    code = """if True:
        import sys
        import redblue as rb
        assert "torch" not in sys.modules
        import torch
        name = "aten::scaled_dot_product_attention"
        before = torch._C._dispatch_dump(name)
        assert "redblue" not in before
        with rb.sdpa():
            assert "torch_sdpa" in torch._C._dispatch_dump(name) or torch._C._dispatch_dump(name) != before
        assert torch._C._dispatch_dump(name) == before
    """
    subprocess.run([sys.executable, "-c", code], check=True)
