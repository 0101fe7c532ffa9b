"""Every function accepts a value for each argument or raises RedblueError."""

import inspect
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from redblue import RedblueError
from redblue.integrations import flash_attn
from redblue.integrations.flash_attn import bert_padding, low_level

WRONG = {
    "None": None,
    "text": "x",
    "a fraction": 1.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "a complex number": 1 + 2j,
    "-1": -1,
    "0": 0,
    "True": True,
    "2^70": 2**70,
    "10^4000": 10**4000,
    "a list": [],
    "a tuple": (),
    "a nested list": [[[]]],
    "a dict": {},
    "an array": np.zeros(3),
    "an object": object(),
    "a function": len,
    "a tensor of another shape": torch.zeros(3),
    "whole numbers": torch.zeros(2, 5, 4, 8, dtype=torch.int64),
    "an empty tensor": torch.zeros(0),
    "a number in a tensor": torch.tensor(2.5),
    "a tensor without data": torch.zeros(2, 5, 4, 8, device="meta"),
    "a complex tensor": torch.zeros(2, 5, 4, 8, dtype=torch.complex64),
}
Q, KV, PACKED, STARTS = torch.zeros(2, 5, 4, 8), torch.zeros(2, 5, 2, 8), torch.zeros(5, 4, 8), torch.tensor([0, 2, 5])
LSE, FLAT_LSE = torch.zeros(2, 4, 5), torch.zeros(4, 5)
QKV = {"q": Q, "k": KV, "v": KV}
FLAT = {"q": PACKED, "k": PACKED, "v": PACKED}
SEQUENCES = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 3, "max_seqlen_k": 3}
PASS = {"dropout_p": 0.0, "softmax_scale": 0.3, "causal": False, "window_size_left": -1, "window_size_right": -1}
PASS |= {"softcap": 0.0, "alibi_slopes": None}
BACK = {"dq": None, "dk": None, "dv": None, **PASS, "deterministic": False}
CALLS = {
    flash_attn.flash_attn_func: QKV,
    flash_attn.flash_attn_kvpacked_func: {"q": Q, "kv": torch.stack([KV, KV], 2)},
    flash_attn.flash_attn_qkvpacked_func: {"qkv": torch.stack([Q, Q, Q], 2)},
    flash_attn.flash_attn_varlen_func: FLAT | SEQUENCES,
    flash_attn.flash_attn_varlen_kvpacked_func: {"q": PACKED, "kv": torch.stack([PACKED] * 2, 1), **SEQUENCES},
    flash_attn.flash_attn_varlen_qkvpacked_func: {
        "qkv": torch.stack([PACKED] * 3, 1),
        "cu_seqlens": STARTS,
        "max_seqlen": 3,
    },
    flash_attn.flash_attn_with_kvcache: {"q": Q, "k_cache": KV, "v_cache": KV},
    low_level._flash_attn_forward: QKV | PASS | {"return_softmax": False},
    low_level._flash_attn_backward: {"dout": Q, **QKV, "out": Q, "softmax_lse": LSE, **BACK},
    low_level._flash_attn_varlen_forward: FLAT | SEQUENCES | PASS,
    low_level._flash_attn_varlen_backward: {
        **{"dout": PACKED, **FLAT, "out": PACKED, "softmax_lse": FLAT_LSE},
        **SEQUENCES,
        **BACK,
    },
    bert_padding.unpad_input: {"hidden_states": Q, "attention_mask": torch.ones(2, 5)},
    bert_padding.unpad_input_for_concatenated_sequences: {
        "hidden_states": Q,
        "attention_mask_in_length": torch.tensor([[2, 3, 0, 0, 0], [1, 0, 0, 0, 0]]),
    },
    bert_padding.pad_input: {"hidden_states": PACKED, "indices": torch.arange(5), "batch": 2, "seqlen": 4},
    bert_padding.index_first_axis: {"x": PACKED, "indices": torch.arange(5)},
    bert_padding.index_first_axis_residual: {"x": PACKED, "indices": torch.arange(5)},
    bert_padding.index_put_first_axis: {"values": PACKED, "indices": torch.arange(5), "first_axis_dim": 7},
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_wrong_values_are_refused_by_name(function):
    function(**CALLS[function])
    outcomes = [refused(function, name, label) for name in inspect.signature(function).parameters for label in WRONG]
    assert sum(outcomes) > 8 * len(CALLS[function])


def refused(function, name, label):
    """Return whether the wrong value is refused. Errors other than RedblueError fail the test."""
    try:
        function(**CALLS[function] | {name: WRONG[label]})
    except RedblueError:
        return True
    except Exception as error:
        raise AssertionError(f"{name}: {label}: {error!r}") from error
    return False
