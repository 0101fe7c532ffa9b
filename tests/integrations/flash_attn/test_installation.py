"""`install()`: the module flash_attn, and its use by other libraries."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations import flash_attn as ours
from redblue.integrations.flash_attn import bert_padding, low_level

# The public functions of flash-attn 2.8 with their parameters
OPTIONS = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
SEQUENCES = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
PARAMETERS = {
    "flash_attn_func": f"q k v {OPTIONS}",
    "flash_attn_kvpacked_func": f"q kv {OPTIONS}",
    "flash_attn_qkvpacked_func": f"qkv {OPTIONS}",
    "flash_attn_varlen_func": f"q k v {SEQUENCES} {OPTIONS} block_table",
    "flash_attn_varlen_kvpacked_func": f"q kv {SEQUENCES} {OPTIONS}",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {OPTIONS}",
    "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
    "return_softmax_lse",
}
DEFAULTS = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "deterministic": False,
    "return_attn_probs": False,
    "block_table": None,
    "rotary_interleaved": True,
    "num_splits": 0,
    "return_softmax_lse": False,
    "cache_seqlens": None,
}


@pytest.fixture(autouse=True)
def _without_flash_attn(monkeypatch):
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash_attn is installed")


@pytest.mark.parametrize("name", PARAMETERS)
def test_signatures_are_those_of_flash_attn(name):
    parameters = dict(inspect.signature(getattr(ours, name)).parameters)
    if (sinks := parameters.pop("s_aux", None)) is not None:  # redblue's additional last parameter
        assert sinks.default is None
    assert list(parameters) == PARAMETERS[name].split()
    for parameter in parameters.values():
        if parameter.default is not inspect.Parameter.empty and parameter.name in DEFAULTS:
            assert parameter.default == DEFAULTS[parameter.name], parameter.name


def test_installed_until_undone(log_messages):
    with ours.install() as installation:
        assert installation.served
        assert any("flash_attn is redblue" in message for message in log_messages)
        import flash_attn
        from flash_attn.bert_padding import pad_input
        from flash_attn.flash_attn_interface import _flash_attn_forward, _wrapped_flash_attn_backward, flash_attn_func

        assert flash_attn.flash_attn_func is flash_attn_func is ours.flash_attn_func
        assert flash_attn.bert_padding.pad_input is pad_input is bert_padding.pad_input
        assert _flash_attn_forward is low_level._flash_attn_forward
        assert _wrapped_flash_attn_backward is flash_attn.flash_attn_interface._flash_attn_backward
        assert flash_attn.__version__ == ours.FLASH_ATTN_VERSION
        for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding"):
            assert importlib.util.find_spec(name).name == name
        with pytest.raises(ModuleNotFoundError, match=r"flash_attn\.layers"):
            importlib.import_module("flash_attn.layers")
    assert importlib.util.find_spec("flash_attn") is None
    assert not any(name.startswith("flash_attn") for name in sys.modules)


def test_the_version_says_whose_it_is_and_is_new_enough():
    packaging = pytest.importorskip("packaging.version")
    version = packaging.parse(ours.FLASH_ATTN_VERSION)
    assert packaging.parse("2.8.3") < version < packaging.parse("2.8.4")
    assert version.local.startswith("redblue")
    assert ours.FLASH_ATTN_VERSION > "2.6.3"  # yunchang compares version strings
    with ours.install(), pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")  # no package was installed


@pytest.mark.parametrize("name", ["_flash_attn_backward", "_flash_attn_varlen_backward"])
def test_backward_passes_are_for_16_bits_where_other_packages_call_them(name):
    """In float32, ring-flash-attn and yunchang would add a buffer to itself."""
    with ours.install():
        from flash_attn import flash_attn_interface

        installed, plain = getattr(flash_attn_interface, name), getattr(low_level, name)
        assert inspect.getfullargspec(installed) == inspect.getfullargspec(plain)
        shape = (1, 3, 2, 8) if "varlen" not in name else (3, 2, 8)
        sequences = ([0, 3], [0, 3], 3, 3) if "varlen" in name else ()
        options = (0.0, 0.3, True, -1, -1, 0.0, None, False)
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            q = torch.zeros(shape, dtype=dtype)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            lse = torch.zeros((*shape[:-3], 2, 3), dtype=wide)
            arguments = (q, q, q, q, q, lse, torch.empty_like(q), None, None, *sequences, *options)
            plain(*arguments)
            if dtype == torch.bfloat16:
                installed(*arguments)
                continue
            with pytest.raises(RedblueError, match=f"{name} takes float16 and bfloat16 .*, got {dtype}"):
                installed(*arguments)


def test_requests_are_counted(log_messages):
    first, second = ours.install(), ours.install()
    assert sum("flash_attn is redblue" in message for message in log_messages) == 1
    first.uninstall()
    first.uninstall()
    assert not first.served
    assert second.served
    import flash_attn

    assert flash_attn.__version__ == ours.FLASH_ATTN_VERSION
    second.uninstall()
    assert "flash_attn" not in sys.modules


def test_the_real_package_stays(monkeypatch, log_messages):
    real = ModuleType("flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", real)
    with ours.install() as installation:
        assert not installation.served
        assert sys.modules["flash_attn"] is real
        assert any("redblue leaves it in place" in message for message in log_messages)
    assert sys.modules["flash_attn"] is real


def test_a_module_that_replaced_redblues_stays(monkeypatch):
    with ours.install():
        other = ModuleType("flash_attn")
        sys.modules["flash_attn"] = other
    assert sys.modules.pop("flash_attn") is other


def test_without_pytorch_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("redblue.integrations.flash_attn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"pip install 'redblue\[torch\]'"):
        importlib.import_module("redblue.integrations.flash_attn")
