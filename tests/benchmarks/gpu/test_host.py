"""The benchmark of the host's time, on tiny calls under Triton's interpreter."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from support.benchmark_scripts import run


def test_every_call_is_measured():
    said = run("gpu.host", "--dry")
    assert said.count("n 16") == 2
    assert said.count("decoding on pages") == 2
    assert "meaningless" in said


def test_without_a_gpu_the_benchmark_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU that PyTorch sees"):
        run("gpu.host")
