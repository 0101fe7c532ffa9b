"""Whole models of transformers on redblue: outputs, gradients of all parameters and generation, compared with eager.

These are a sample; `make transformers-table` compares every model class.
"""

import copy
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import redblue as rb
from redblue.integrations.transformers import mask_function, register
from support.transformers_models.compare import compare
from support.transformers_models.fixes import CONFIGS
from support.transformers_models.inputs import padding
from support.transformers_models.tiny import tiny

FAST = ["BertModel", "Gemma2ForCausalLM", "GptOssForCausalLM", "T5ForConditionalGeneration"]
THOROUGH = ["LlamaForCausalLM", "Llama4ForCausalLM", "Qwen2VLForConditionalGeneration", "GPT2LMHeadModel"]
THOROUGH += ["MistralForCausalLM", "Gemma3ForConditionalGeneration", "Phi3ForCausalLM", "ViTModel"]
THOROUGH += ["WhisperForConditionalGeneration", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "ModernBertModel"]
THOROUGH += [
    "BigBirdPegasusModel",
    "DeepseekV4ForCausalLM",
    "CLIPModel",
    "Wav2Vec2Model",
    "BartForConditionalGeneration",
]
THOROUGH += ["Qwen3ForCausalLM", "OPTForCausalLM", "Olmo2ForCausalLM", "DistilBertModel"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers redblue, makes tiny masks rules, too, and turns off transformers' messages."""
    from transformers.utils import logging

    monkeypatch.setattr(mask_function, "SMALL", 0)
    verbosity, threads = logging.get_verbosity(), torch.get_num_threads()
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    with register():
        yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.thorough) for name in THOROUGH)])
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_the_same_as_eager(name):
    outcome = compare(getattr(transformers, name), sdpa=False)
    assert outcome["status"] == "same", outcome
    assert outcome.get("generates") in ("same", None), outcome


OWN_TABLES = ["SamModel", "SamHQModel", "DeepseekOcr2Model", "UnlimitedOcrModel"]


@pytest.mark.parametrize(
    "name", [OWN_TABLES[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in OWN_TABLES[1:])]
)
@pytest.mark.filterwarnings("ignore")
def test_a_model_with_a_table_of_its_own_runs_on_redblue_through_sdpa(name):
    cls = getattr(transformers, name)
    assert compare(cls, sdpa=False)["reason"] == "KeyError: 'redblue'"
    with rb.sdpa() as used:
        assert compare(cls)["sdpa"] == "same"
    assert used.served > 0
    assert not used.refused


@pytest.mark.filterwarnings("ignore")
def test_git_has_only_eager_attention():
    outcome = compare(transformers.GitModel)
    assert (outcome["reason"], outcome["sdpa"]) == ("KeyError: 'redblue'", "refused")


def tiny_model(name, **fields):
    """A model with random weights, on eager."""
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(tiny(cls.config_class, CONFIGS, **fields)).eval()
    model.set_attn_implementation("eager")
    return model


IDS = torch.randint(3, 90, (2, 14), generator=torch.Generator().manual_seed(0))


def test_packed_documents_are_separate_sequences():
    model = tiny_model("MistralForCausalLM")
    model.set_attn_implementation("redblue")
    positions = torch.tensor([[*range(5), *range(9)]])
    together = model(IDS[:1], position_ids=positions, use_cache=False).logits
    apart = torch.cat([model(part).logits for part in (IDS[:1, :5], IDS[:1, 5:])], 1)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)
    starts = torch.tensor([0, 5, 14], dtype=torch.int32)
    varlen = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 9, "max_length_k": 9}
    torch.testing.assert_close(model(IDS[:1], position_ids=positions, use_cache=False, **varlen).logits, together)


def test_generation_with_a_static_cache():
    model = tiny_model("LlamaForCausalLM")
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": padding(left=True)}
    expected = model.generate(IDS, **settings)
    model.set_attn_implementation("redblue")
    for cache in ("dynamic", "static"):
        actual = model.generate(IDS, cache_implementation=cache, disable_compile=True, **settings)
        assert torch.equal(actual, expected), cache


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    model = tiny_model("MistralForCausalLM").train()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    gradients = []
    for implementation in ("eager", "redblue"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        labels = IDS.masked_fill(padding() == 0, -100)
        model(IDS, attention_mask=padding(), labels=labels).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_output_attentions_is_refused():
    model = tiny_model("LlamaForCausalLM")
    model.set_attn_implementation("redblue")
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True
    out = model(IDS)
    assert out.get("attentions") is None


@pytest.mark.filterwarnings("ignore")
def test_the_guide(capsys):
    page = (Path(__file__).parents[3] / "docs" / "guide" / "transformers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/guide/transformers.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([2, 20])\n3\n"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore", "error:.*lru_cache")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["MistralForCausalLM", "T5EncoderModel"])
def test_compiled_models(name, padded):
    """One graph, without breaks, forward and backward."""
    model = tiny_model(name)
    model.set_attn_implementation("redblue")
    arguments = {"input_ids": IDS} | ({"attention_mask": padding()} if padded else {})
    results = []
    torch._dynamo.reset()
    for run in (model, torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)):
        out = run(**arguments, use_cache=False)[0]
        out.square().mean().backward()
        results.append((out.detach(), [p.grad for p in run.parameters()]))
    torch._dynamo.reset()
    kept = slice(None) if not padded else padding().bool()
    torch.testing.assert_close(results[0][0][kept], results[1][0][kept], atol=1e-5, rtol=1e-4)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.thorough
def test_a_compiled_forward_takes_masks_from_generate():
    """`generate` makes the masks for a static cache outside of the compiled graph."""
    model = tiny_model("MistralForCausalLM")
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "attention_mask": padding(left=True)}
    expected = model.generate(IDS, **settings)
    model.set_attn_implementation("redblue")
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="eager")
    actual = model.generate(IDS, cache_implementation="static", disable_compile=True, **settings)
    torch._dynamo.reset()
    assert torch.equal(actual, expected)
