"""The contenders, redblue and its peers. Each is called as its users call it, in the layout that suits it best.

`contender` builds a function without arguments for one call. The function computes the results and returns them as
PyTorch tensors: [out], or [dq, dk, dv]. All contenders use `THREADS` threads and inputs that exist before the call.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.timing import THREADS, fastest

REDBLUE, PYTORCH, ONNXRUNTIME, OPENVINO = "redblue", "PyTorch", "ONNX Runtime", "OpenVINO"
MODULES = {PYTORCH: ("torch",), ONNXRUNTIME: ("onnxruntime", "onnx"), OPENVINO: ("openvino",)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

Run = Callable[[], "list[torch.Tensor]"]


@dataclass(frozen=True)
class Call:
    """One call of attention, on one batch."""

    d: int
    dtype: str = "float32"
    direction: str = "forward"
    n_q: int = 2048
    n_k: int = 2048
    heads: int = 4
    causal: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of two products forward, or five backward, with a full mask."""
        return {"forward": 4, "backward": 10}[self.direction] * self.heads * self.n_q * self.n_k * self.d

    @property
    def title(self) -> str:
        n = f"n {self.n_q}" if self.n_q == self.n_k else f"n_q {self.n_q}, n_k {self.n_k}"
        return f"{SHORT[self.dtype]} {self.direction}, H {self.heads}, {n}, d {self.d}{', causal' * self.causal}"


class Inputs(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def inputs(call: Call, dtype: torch.dtype | None = None) -> Inputs:
    """Tensors (1, H, n, d), contiguous, normally distributed, equal for equal calls."""
    generator = torch.Generator().manual_seed(call.d)
    rows = (call.n_q, call.n_k, call.n_k, call.n_q)
    drawn = [torch.randn(1, call.heads, n, call.d, generator=generator).to(DTYPES[call.dtype]) for n in rows]
    return Inputs(*(x.to(dtype) if dtype else x for x in drawn))


def missing(peer: str) -> list[str]:
    """The modules that this peer lacks."""
    return [module for module in MODULES.get(peer, ()) if importlib.util.find_spec(module) is None]


def contender(peer: str, call: Call) -> Run | None:
    """A function that runs the call; None if the peer does not support it."""
    makers = {REDBLUE: _redblue, PYTORCH: _pytorch, ONNXRUNTIME: _onnxruntime, OPENVINO: _openvino}
    return makers[peer](call, inputs(call))


def gradients(forward: Callable[..., torch.Tensor], x: Inputs) -> Run:
    """A run of only the backward pass. The graph is recorded once and kept."""
    leaves = [array.requires_grad_() for array in x[:3]]
    out = forward(*leaves)
    return lambda: list(torch.autograd.grad(out, leaves, x.dout, retain_graph=True))


def _in_torch(call: Call, x: Inputs, forward: Callable[..., torch.Tensor]) -> Run:
    if call.direction == "backward":
        return gradients(forward, x)
    return lambda: [forward(x.q, x.k, x.v)]


def _redblue(call: Call, x: Inputs) -> Run:
    mask = rb.Mask.causal() if call.causal else None
    return _in_torch(call, x, lambda q, k, v: rb.attention(q, k, v, mask=mask))


def _pytorch(call: Call, x: Inputs) -> Run:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return _in_torch(call, x, lambda q, k, v: sdpa(q, k, v, is_causal=call.causal))


def _onnxruntime(call: Call, x: Inputs) -> Run | None:
    """ONNX Runtime's fused MultiHeadAttention, with K and V in the faster layout: (B, H, n, d) or (B, n, H d)."""
    if call.direction == "backward" or call.dtype != "float32" or call.causal:
        return None
    heads_inside = [array.transpose(1, 2).reshape(1, -1, call.heads * call.d).contiguous() for array in x[:3]]
    return fastest([_onnx_session(call, heads_inside), _onnx_session(call, [heads_inside[0], x.k, x.v])])  # pyright: ignore[reportReturnType]


def _onnx_session(call: Call, arrays: list[torch.Tensor]) -> Run:
    from onnx import TensorProto, helper  # pyright: ignore[reportMissingImports]
    from onnxruntime import InferenceSession, OrtValue, SessionOptions  # pyright: ignore[reportMissingImports]

    out = torch.empty(1, call.n_q, call.heads * call.d)
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft", num_heads=call.heads
    )
    q, k, v, o = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, tuple(array.shape))
        for name, array in zip(("q", "k", "v", "out"), (*arrays, out), strict=True)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "attention", [q, k, v], [o]), opset_imports=opsets, ir_version=10
    )
    options = SessionOptions()
    options.intra_op_num_threads = THREADS
    # The threads of ONNX Runtime may spin during a call, but not after it, when other contenders run.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in zip(("q", "k", "v"), arrays, strict=True):
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array.numpy()))
    binding.bind_output("out", "cpu", 0, np.float32, tuple(out.shape), out.data_ptr())
    result = out.view(1, call.n_q, call.heads, call.d).transpose(1, 2)

    def run(_kept: Any = arrays) -> list[torch.Tensor]:
        session.run_with_iobinding(binding)
        return [result]

    return run


@cache
def _openvino_core() -> Any:
    return importlib.import_module("openvino").Core()


def _openvino(call: Call, x: Inputs) -> Run | None:
    """OpenVINO's operator ScaledDotProductAttention, computed in the type of its inputs."""
    if call.direction == "backward" or call.dtype == "float16" or call.causal:
        return None
    ov, ops = importlib.import_module("openvino"), importlib.import_module("openvino.opset13")
    name = {"float32": "f32", "bfloat16": "bf16"}[call.dtype]
    kind = getattr(ov.Type, name)
    parameters = [ops.parameter(list(array.shape), kind, name=letter) for letter, array in zip("qkv", x, strict=False)]
    node = ops.result(ops.scaled_dot_product_attention(*parameters, causal=False))
    options = {
        "INFERENCE_NUM_THREADS": THREADS,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": name,
        "ENABLE_CPU_PINNING": False,  # pinning would also pin the calling thread
    }
    request = _openvino_core().compile_model(ov.Model([node], parameters), "CPU", options).create_infer_request()
    out = torch.empty(1, call.heads, call.n_q, call.d, dtype=DTYPES[call.dtype])
    # NumPy has no bfloat16, so such arrays are passed as bits. `run` keeps the arrays alive; the tensors do not.
    bits = [array.view(torch.uint16) if array.dtype == torch.bfloat16 else array for array in (*x[:3], out)]
    arrays = [array.numpy() for array in bits]
    tensors = [ov.Tensor(array, ov.Shape(list(array.shape)), kind) for array in arrays]
    for i, tensor in enumerate(tensors[:3]):
        request.set_input_tensor(i, tensor)
    request.set_output_tensor(0, tensors[3])

    def run(_kept: Any = (x, arrays, tensors)) -> list[torch.Tensor]:
        request.infer()
        return [out]

    return run
