"""The kernel repository for transformers, loaded from disk as from the hub."""

import json
import re
import runpy
import sys
from typing import Any

import pytest

from redblue import RedblueError
from redblue.integrations import hub_kernel

torch = pytest.importorskip("torch")

REPOSITORY = "redblue/attention"
FLASH = "redblue/flash-attention"  # transformers treats names with "flash" as FlashAttention


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The repository, which `kernels` loads from disk instead of from the hub."""
    folder = hub_kernel.write(tmp_path / "hub")
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={folder}:{FLASH}={folder}")
    return folder


def test_files(repository):
    assert sorted(str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()) == [
        "README.md",
        *(f"build/{variant}/{name}" for variant in hub_kernel.VARIANTS for name in ("__init__.py", "metadata.json")),
    ]
    for variant in hub_kernel.VARIANTS:
        metadata = json.loads((repository / "build" / variant / "metadata.json").read_text())
        assert metadata["id"].isidentifier()
        assert metadata["version"] == 1
    hub_kernel.write(repository)  # again, in place


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hub_kernel", str(tmp_path / "hub")])
    monkeypatch.delitem(sys.modules, "redblue.integrations.hub_kernel")
    runpy.run_module("redblue.integrations.hub_kernel", run_name="__main__")
    assert capsys.readouterr().out.strip() == str(tmp_path / "hub")
    (tmp_path / "file").touch()
    with pytest.raises(RedblueError, match="file is a file: give a folder"):
        hub_kernel.write(tmp_path / "file")


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n")
    with pytest.raises(RedblueError, match="holds other files: give a new or empty folder"):
        hub_kernel.write(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("arguments", [[], ["--unknown"], ["a", "b"], ["file"], ["file/below"]])
def test_the_command_refuses_in_one_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["hub_kernel", *arguments])
    monkeypatch.delitem(sys.modules, "redblue.integrations.hub_kernel")
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("redblue.integrations.hub_kernel", run_name="__main__")
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("variant", hub_kernel.VARIANTS)
def test_each_variant_can_be_imported(repository, variant):
    pytest.importorskip("transformers")
    module = runpy.run_path(str(repository / "build" / variant / "__init__.py"))
    q = torch.randn(1, 2, 5, 8)
    out, _ = module["flash_attn_forward"](torch.nn.Identity(), q, q, q, None)
    assert out.shape == (1, 5, 2, 8)


def test_without_redblue_the_package_is_named(repository, monkeypatch):
    monkeypatch.setitem(sys.modules, "redblue.integrations.transformers.hub", None)
    with pytest.raises(ImportError, match=r"pip install 'redblue\[transformers\]'"):
        runpy.run_path(str(repository / "build" / "torch-cpu" / "__init__.py"))


def test_kernels_loads_it_without_the_network(repository):
    kernels = pytest.importorskip("kernels")
    pytest.importorskip("transformers")
    from redblue.integrations.transformers.hub import flash_attn_forward

    for module in (kernels.get_kernel(REPOSITORY, version=1), kernels.get_local_kernel(repository)):
        assert module.flash_attn_forward is flash_attn_forward
        assert module.supports_flash_attn
        assert not hasattr(module, "flash_attn_varlen_func")  # with this function, transformers drops position_bias
    assert kernels.has_kernel(REPOSITORY, version=1)


def test_builds_of_pytorch_with_cuda_take_the_universal_variant(repository, monkeypatch):
    variants = pytest.importorskip("kernels.variants")
    from kernels import backends

    builds = variants.get_variants_local(repository / "build")
    for backend, expected in (
        (backends.CPU(), "torch-cpu"),
        (backends.CUDA(backends.Version("13.0")), "torch-universal"),
    ):
        monkeypatch.setattr(variants, "_select_backend", lambda _, backend=backend: backend)
        assert variants.resolve_variant(builds)[0].variant_str == expected


@pytest.fixture
def hub(repository, monkeypatch):
    """The repository for transformers, which checks the version of `kernels` before it uses its functions."""
    kernels = pytest.importorskip("kernels")
    pytest.importorskip("transformers")
    from transformers import modeling_flash_attention_utils as utils
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", kernels.get_kernel, raising=False)
    for name in vars(utils):
        if name == "_loaded_implementation" or (name.startswith("_") and name.endswith("_fn")):
            monkeypatch.setattr(utils, name, getattr(utils, name))


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 8,
}
SIZES |= {"vocab_size": 64, "intermediate_size": 48, "pad_token_id": 0}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "MistralConfig": {"sliding_window": 5},
    "Gemma2Config": {"sliding_window": 5},
}
CONFIGS["GptOssConfig"] = {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1}
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}


def models(name, implementation, monkeypatch):
    """Return a small model with random weights under `eager`, and its copy under the kernel."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssPreTrainedModel

    # transformers lists the kernels for this model, and would replace one whose name contains "flash"
    monkeypatch.setattr(GptOssPreTrainedModel, "_compatible_flash_implementations", [FLASH])
    torch.manual_seed(0)
    both = []
    for attention in ("eager", implementation):
        config = getattr(transformers, name)(**SIZES, **CONFIGS[name])
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        both.append(model.eval())
    with torch.no_grad():
        for parameter in both[0].parameters():
            if parameter.shape == (4,):  # sinks
                parameter.normal_()
    both[1].load_state_dict(both[0].state_dict())
    return both


def check_gradients(model, copy, kept, **arguments):
    """Compare logits and the gradients of all parameters."""
    results = []
    for variant in (model, copy):
        logits = variant(**arguments).logits
        logits = logits if kept is None else logits[kept]
        results.append([logits, *torch.autograd.grad(logits.sin().sum(), list(variant.parameters()))])
    for right, got in zip(*results, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("implementation", [REPOSITORY, FLASH])
@pytest.mark.parametrize("name", CONFIGS)
def test_models_give_the_same_as_eager(name, implementation, hub, monkeypatch):
    model, copy = models(name, implementation, monkeypatch)
    assert copy.config._attn_implementation == implementation
    ids, mask = torch.randint(1, 64, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    check_gradients(model, copy, None, input_ids=ids)
    mask[1, :4] = 0
    check_gradients(model, copy, mask.bool(), input_ids=ids, attention_mask=mask)
    both = [x.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False) for x in (model, copy)]
    assert torch.equal(*both)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["LlamaConfig", "Gemma2Config"])
def test_compiled_models_give_the_same_as_eager(name, hub, monkeypatch):
    model, copy = models(name, REPOSITORY, monkeypatch)
    compiled = torch.compile(copy, fullgraph=True, backend="eager")
    ids = torch.randint(1, 64, (2, 12))
    for cached in (False, True):
        right, got = (x(input_ids=ids, use_cache=cached).logits for x in (model, compiled))
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("implementation", [REPOSITORY, FLASH])
def test_a_model_with_a_position_bias_gives_the_same_as_eager(implementation, hub):
    import transformers

    torch.manual_seed(0)
    model, copy = (
        transformers.T5ForConditionalGeneration._from_config(
            transformers.T5Config(**T5, decoder_start_token_id=0, dropout_rate=0), attn_implementation=attention
        )
        for attention in ("eager", implementation)
    )
    copy.load_state_dict(model.state_dict())
    assert copy.config._attn_implementation == implementation
    ids, mask = torch.randint(1, 64, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    check_gradients(model, copy, None, input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :7])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("implementation", [REPOSITORY, FLASH])
@pytest.mark.parametrize("name", ["PegasusXModel", "InformerModel", "LongT5Model"])
def test_models_that_compute_with_their_mask_are_refused(name, implementation, hub):
    import transformers

    from support.transformers_models import compare

    cls = getattr(transformers, name)
    config, reference = compare._reference(cls)
    inputs, _ = compare._inputs(cls, reference)
    model = cls._from_config(config, attn_implementation=implementation)
    with pytest.raises(RedblueError, match=r"does not support the masks of kernels: call redblue\..*register\(\)"):
        model(**inputs)


def test_masks_of_other_forms_are_refused(hub, monkeypatch):
    from transformers import AttentionMaskInterface, MistralConfig, masking_utils
    from transformers.models.longt5.modeling_longt5 import LongT5Attention
    from transformers.models.mistral.modeling_mistral import MistralAttention

    from redblue.integrations.transformers.hub import flash_attn_forward

    config = MistralConfig(**SIZES, attn_implementation="some/flash")
    layer = MistralAttention(config, 0)
    q = torch.randn(2, 4, 6, 8)
    for n_k, keywords, message in (
        (
            6,
            {"attention_mask": torch.ones(2, 6, dtype=torch.bool)},
            "must be (batch, 1 or heads, n_q, n_k) in a kernel",
        ),
        (
            6,
            {"attention_mask": None, "sliding_window": 5},
            'sliding_window=5 for 6 keys without a mask, under the name "some/flash"',
        ),
        (8, {"attention_mask": None}, "6 queries and 8 keys without a mask"),
        (6, {"attention_mask": None, "unknown": 1}, "does not take unknown=1"),
    ):
        k = torch.randn(2, 2, n_k, 8)
        with pytest.raises(RedblueError, match=re.escape(message)):
            flash_attn_forward(layer, q, k, k, **keywords)
    config._attn_implementation = "other/masks"
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "other/masks", masking_utils.flash_attention_mask)
    with pytest.raises(RedblueError, match='other masks than those of "sdpa"'):
        flash_attn_forward(layer, q, q, q, None)
    with pytest.raises(RedblueError, match="LongT5Attention does not support the masks of kernels"):
        flash_attn_forward(LongT5Attention.__new__(LongT5Attention), q, q, q, None)


def test_a_model_of_flash_attention_that_is_unfit_for_sdpa():
    """A layer without a mask is causal if its `is_causal` is True; a floating mask was computed from a boolean one."""
    import transformers
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

    from redblue.integrations.transformers.hub import flash_attn_forward

    layer = Gemma2Attention(transformers.Gemma2Config(**SIZES), 0)
    q = torch.randn(2, 4, 6, 8)
    causal, _ = flash_attn_forward(layer, q, q, q, None)
    right = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(causal, right)
    full, _ = flash_attn_forward(layer, q, q, q, None, is_causal=False)
    torch.testing.assert_close(full, torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2))
    with pytest.raises(RedblueError, match="6 queries and 5 keys without a mask"):
        flash_attn_forward(layer, q, q[:, :, 1:], q[:, :, 1:], None)
    with pytest.raises(RedblueError, match="computed a floating mask from the boolean mask of a kernel"):
        flash_attn_forward(layer, q, q, q, torch.ones(2, 1, 6, 6))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["LlamaConfig", "MistralConfig"])
def test_continuous_batching_gives_the_same_as_generation(name, hub, monkeypatch):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, copy = models(name, FLASH, monkeypatch)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2], [1, 2]]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    memory = ContinuousBatchingConfig(num_blocks=8, block_size=32, max_batch_tokens=64)
    results = copy.generate_batch(prompts, GenerationConfig(**options), memory)
    assert len(results) == len(prompts)
    for prompt, result in zip(prompts, results.values(), strict=True):
        right = model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :]
        assert result.generated_tokens == right.tolist()
