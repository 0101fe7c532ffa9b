"""The plug-in's entry point: it acts only if REDBLUE_VLLM requests it."""

import os
import subprocess
import sys
import types
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from redblue import RedblueError
from redblue.integrations.vllm import VARIABLE, register

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("value", [None, "", "0"])
def test_an_installed_plug_in_does_nothing_by_itself(value, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it would fail
    before = {*sys.modules}
    register()
    assert {*sys.modules} == before


@pytest.mark.parametrize("value", ["2", "true", " 1"])
def test_other_values_are_refused(value, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(RedblueError, match=f"REDBLUE_VLLM must be 1 .*, 0 or unset: got '{value}'"):
        register()


def test_a_missing_or_other_vllm_is_named(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RedblueError, match=r"needs vLLM 0\.32, or a version with the same classes; unset it"):
        register()


def test_the_entry_point_leads_here():
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"redblue": "redblue.integrations.vllm:register"}
    for entry in entry_points(group="vllm.general_plugins", name="redblue"):  # an older installation has none
        assert entry.load() is register


def test_importing_the_plug_in_is_light():
    """vLLM imports it in every process, even if it is not used."""
    program = "import sys, redblue.integrations.vllm; print(sorted({'vllm', 'torch'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


CHECK = """
import torch, types
from vllm.plugins import load_general_plugins
from vllm import platforms
from vllm.v1.attention.backends.registry import AttentionBackendEnum
load_general_plugins()
print(AttentionBackendEnum.CPU_ATTN.is_overridden(), AttentionBackendEnum.CPU_ATTN.get_class().__name__)
from redblue.integrations.vllm import register
register()
platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: False, device_name="a GPU")
try:
    register()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_vllm_loads_it():
    pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")
    env = os.environ | {VARIABLE: "1"}
    run = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=env)
    assert run.stdout.splitlines() == [
        "True RedblueBackend",
        "RedblueError REDBLUE_VLLM=1 replaces vLLM's attention on CPUs, but this vLLM runs on a GPU: unset it",
    ], run.stderr[-3000:]
