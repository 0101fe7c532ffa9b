"""The catalogue of models: its entries have sources and give problems for any n."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redblue.catalogue.models import list_models, model
from redblue.masks import Mask
from support.configs import shapes

FULL, CAUSAL = Mask.full(), Mask.causal()


def test_catalogue():
    assert {
        "gpt2", "gpt2-medium", "bert-large", "llama-3-8b", "gemma-2-9b", "gemma-3-12b", "gemma-4-31b", "qwen3-8b",
        "deepseek-v3", "sd-vae",
    } <= set(list_models())  # fmt: skip
    assert shapes(model("gpt2-medium")) == [("attention", 24, 1024, 1024, 16, 16, 64, 64, CAUSAL)]
    assert shapes(model("sd-vae")) == [("mid block", 2, 4096, 4096, 1, 1, 512, 512, FULL)]
    assert shapes(model("gemma-4-31b")) == [
        ("sliding", 50, 4096, 4096, 32, 16, 256, 256, Mask.sliding_window(left=1023, right=0)),
        ("global", 10, 4096, 4096, 32, 4, 512, 512, CAUSAL),
    ]


@pytest.mark.parametrize("name", list_models())
def test_catalogue_entries_say_what_they_are(name):
    loaded = model(name)
    assert loaded.name == name
    assert loaded.title
    assert "20" in loaded.source  # a date
    assert len({entry.name for entry in loaded}) == len(loaded)


@given(st.sampled_from(list_models()), st.integers(1, 1_000_000), st.sampled_from(["forward", "backward"]))
def test_catalogue_gives_problems_for_any_n(name, n, direction):
    for entry in model(name, n=n, batch=2, direction=direction):
        assert entry.layers >= 1
        assert 1 <= entry.problem.n_q <= n
        assert entry.problem.batch == 2
        assert entry.problem.direction == direction


def test_a_model_is_a_sequence_of_its_layers():
    loaded = model("gemma-2-9b")
    assert len(loaded) == 2
    assert list(loaded) == [loaded[0], loaded[1]] == list(loaded.layers)
    assert loaded.problems == tuple(entry.problem for entry in loaded)
