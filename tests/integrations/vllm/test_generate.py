"""Whole models in vLLM, from disk and offline: results with redblue's plug-in equal the results without it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: make test-vllm", allow_module_level=True)

SCRIPT = Path(__file__).with_name("generate.py")
MODELS = ("grouped", "bfloat16", "window", "softcap", "alibi")
TOLERANCE = {"bfloat16": 0.25}  # of a log-probability; the others are float32


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of all models, by vLLM's own attention and by redblue's."""
    folder = tmp_path_factory.mktemp("models")
    results = []
    for wanted in ("0", "1"):
        out = folder / f"{wanted}.json"
        command = [sys.executable, str(SCRIPT), str(folder), str(out), *MODELS, "encoder"]
        run = subprocess.run(command, env=os.environ | {"REDBLUE_VLLM": wanted}, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-4000:]
        assert ("redblue computes the attention" in run.stdout + run.stderr) == (wanted == "1")
        results.append(json.loads(out.read_text()))
    return results


def test_the_plug_in_is_used_only_when_asked_for(results):
    assert [result["backend"] for result in results] == [
        "vllm.v1.attention.backends.cpu_attn",
        "redblue.integrations.vllm.backend",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens(name, results):
    """Tokens are equal in float32.

    In bfloat16, tokens may differ if their log-probabilities differ by rounding only.
    """
    theirs, ours = (result[name] for result in results)
    assert len(theirs) == len(ours) == 6
    limit = TOLERANCE.get(name, 1e-4)
    compared = 0
    for expected, got in zip(theirs, ours, strict=True):
        assert len(expected["tokens"]) == len(got["tokens"]) == 24
        if name not in TOLERANCE:
            assert got["tokens"] == expected["tokens"]
        for i, (a, b) in enumerate(zip(expected["logprobs"], got["logprobs"], strict=True)):
            for token in a.keys() & b.keys():
                assert abs(a[token] - b[token]) < limit
                compared += 1
            if expected["tokens"][i] != got["tokens"][i]:  # from here on, the models read different tokens
                chosen = str(got["tokens"][i])
                assert a[str(expected["tokens"][i])] - a[chosen] < limit
                break
    assert compared > 100


def test_embeddings_of_an_encoder(results):
    theirs, ours = (result["encoder"] for result in results)
    assert len(theirs) == len(ours) == 6
    for expected, got in zip(theirs, ours, strict=True):
        assert len(got) == 128
        assert max(abs(a - b) for a, b in zip(expected, got, strict=True)) < 1e-5
