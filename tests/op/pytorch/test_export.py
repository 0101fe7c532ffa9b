"""Masks in saved graphs: torch.export, jit.trace and AOTInductor carry a mask's content into another process."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import redblue as rb
from redblue import Mask, RedblueError
from redblue.masks import serialised
from redblue.op.pytorch import masks

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of PyTorch's exporters
MASK = Mask.bigbird(4)
LOAD = """
import sys, torch, redblue as rb
kinds = {
    "export": lambda path: torch.export.load(path).module(),
    "trace": torch.jit.load,
    "aoti": lambda path: torch._inductor.aoti_load_package(path),
}
x = torch.sin(torch.arange(1024.0).reshape(1, 2, 64, 8))
rb.register_ops()
rb.attention(x, x, x, mask=rb.Mask.documents([32, 32]))  # which no graph may use in place of its own mask
for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):
    assert torch.allclose(kinds[kind](path)(x), rb.attention(x, x, x, mask=rb.Mask.bigbird(4)), atol=1e-5), kind
    print(kind, "right")
"""


class Layer(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return rb.attention(x, x, x, mask=self.mask)


def numbers(n=64):
    return torch.sin(torch.arange(n * 16.0).reshape(1, 2, n, 8))


def loaded_elsewhere(**paths):
    """Load and run the saved graphs in a new process. Return the lines that it prints."""
    arguments = [str(part) for kind_and_path in paths.items() for part in kind_and_path]
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", LOAD, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split("\n")[:-1]


@pytest.mark.thorough
def test_a_new_process_runs_exported_and_traced_graphs_with_their_own_mask(tmp_path):
    x, layer = numbers(), Layer(MASK)
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "layer.pt2")
    torch.jit.trace(layer, (x,)).save(tmp_path / "layer.pt")
    assert loaded_elsewhere(export=tmp_path / "layer.pt2", trace=tmp_path / "layer.pt") == [
        "export right",
        "trace right",
    ]


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_new_process_runs_a_compiled_package_with_its_own_mask(tmp_path):
    program = torch.export.export(Layer(MASK), (numbers(),), strict=True)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    assert loaded_elsewhere(aoti=path) == ["aoti right"]


@pytest.mark.parametrize("strict", [False, True])
def test_exported_graphs_hold_the_text_of_the_mask(strict):
    program = torch.export.export(Layer(MASK), (numbers(),), strict=strict)
    assert serialised.text_of(MASK) in {x for node in program.graph.nodes for x in node.args if isinstance(x, str)}


def test_a_damaged_text_and_a_name_of_another_process_are_refused():
    x, text = numbers(), serialised.text_of(MASK)
    others = None, None, 0.0, None, None, None, None, None
    for wrong, says in (
        (text.replace('"seed":0', '"seed":1'), "the text of a mask is damaged"),
        (text[:-1], "the text of a mask is damaged"),
        ("mask1", "mask1, is gone.* must be exported again"),
        ("mask-0123", "is gone"),
    ):
        with pytest.raises(RedblueError, match=says):
            torch.ops.redblue.attention(x, x, x, -1, -1, False, wrong, "auto", *others)


def test_a_mask_too_large_for_a_text_is_refused_by_exporters_and_compiled(monkeypatch):
    monkeypatch.setattr(serialised, "MAX_CHARACTERS", 100)
    mask = Mask.from_dense(np.random.default_rng(0).random((64, 64)) < 0.5)
    x, layer = numbers(), Layer(mask)
    for export in (lambda: torch.export.export(layer, (x,)), lambda: torch.jit.trace(layer, (x,))):
        with pytest.raises(RedblueError, match=r"cannot be written into a graph as text: its text has .* characters"):
            export()
    with pytest.raises(Exception, match="cannot be written into a graph as text"):
        torch.export.export(layer, (x,), strict=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-5)


def test_a_graph_finds_its_mask_again_after_many_others(monkeypatch):
    monkeypatch.setattr(masks, "KEPT", 1)
    x, layer = numbers(), Layer(MASK)
    traced, expected = torch.jit.trace(layer, (x,)), layer(x)
    torch.jit.trace(Layer(Mask.strided(3)), (x,))
    assert torch.allclose(traced(x), expected, atol=1e-5)
