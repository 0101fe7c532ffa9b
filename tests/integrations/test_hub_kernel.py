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
    """The repository, which `kernels` takes from disk instead of from the hub."""
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

    found = variants.get_variants_local(repository / "build")
    for backend, expected in (
        (backends.CPU(), "torch-cpu"),
        (backends.CUDA(backends.Version("13.0")), "torch-universal"),
    ):
        monkeypatch.setattr(variants, "_select_backend", lambda _, backend=backend: backend)
        assert variants.resolve_variant(found)[0].variant_str == expected
