"""The kernel repository for transformers, loaded from disk as from the hub."""

import json
import runpy
import sys

import pytest

from redblue import RedblueError
from redblue.integrations import hub_kernel

torch = pytest.importorskip("torch")

REPOSITORY = "redblue/flash-attn"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The repository, which `kernels` loads from disk instead of from the hub."""
    folder = hub_kernel.write(tmp_path / "hub")
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={folder}")
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
    module = runpy.run_path(str(repository / "build" / variant / "__init__.py"))
    q = torch.randn(1, 5, 2, 8)
    assert module["flash_attn_func"](q, q, q, causal=True).shape == q.shape
    assert set(module["__all__"]) == set(hub_kernel.FUNCTIONS)


def test_without_redblue_the_package_is_named(repository, monkeypatch):
    monkeypatch.setitem(sys.modules, "redblue.integrations.flash_attn", None)
    with pytest.raises(ImportError, match=r"pip install 'redblue\[torch\]'"):
        runpy.run_path(str(repository / "build" / "torch-cpu" / "__init__.py"))


def test_kernels_loads_it_without_the_network(repository):
    kernels = pytest.importorskip("kernels")
    from redblue.integrations.flash_attn import flash_attn_varlen_func

    for module in (kernels.get_kernel(REPOSITORY, version=1), kernels.get_local_kernel(repository)):
        assert module.flash_attn_varlen_func is flash_attn_varlen_func
        assert all(hasattr(module, name) for name in hub_kernel.FUNCTIONS)
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


SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"vocab_size": 64, "intermediate_size": 48, "pad_token_id": 0}
CONFIGS = {"LlamaConfig": {}, "MistralConfig": {"sliding_window": 5}, "Gemma2Config": {"sliding_window": 5}}
CONFIGS["GptOssConfig"] = {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1}


def models(name, monkeypatch):
    """Return a small model with random weights under `eager`, and its copy under the kernel."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssPreTrainedModel

    # transformers lists the kernels for this model, and would replace a kernel that is not in the list
    monkeypatch.setattr(GptOssPreTrainedModel, "_compatible_flash_implementations", [REPOSITORY])
    torch.manual_seed(0)
    both = []
    for implementation in ("eager", REPOSITORY):
        config = getattr(transformers, name)(**SIZES, **CONFIGS[name])
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
        both.append(model.eval())
    with torch.no_grad():
        for parameter in both[0].parameters():
            if parameter.shape == (4,):  # sinks
                parameter.normal_()
    both[1].load_state_dict(both[0].state_dict())
    return both


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_models_give_the_same_as_eager(name, hub, monkeypatch):
    model, copy = models(name, monkeypatch)
    assert copy.config._attn_implementation == REPOSITORY
    ids, mask = torch.randint(1, 64, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    gradients = []
    for variant in (model, copy):
        logits = variant(ids, attention_mask=mask).logits[mask.bool()]
        gradients.append([logits, *torch.autograd.grad(logits.sin().sum(), list(variant.parameters()))])
    for right, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
    both = [x.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False) for x in (model, copy)]
    assert torch.equal(*both)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_continuous_batching_gives_the_same_as_generation(hub, monkeypatch):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, copy = models("LlamaConfig", monkeypatch)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2], [1, 2]]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    memory = ContinuousBatchingConfig(num_blocks=8, block_size=32, max_batch_tokens=64)
    results = copy.generate_batch(prompts, GenerationConfig(**options), memory)
    for prompt, result in zip(prompts, results.values(), strict=True):
        right = model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :]
        assert result.generated_tokens == right.tolist()
