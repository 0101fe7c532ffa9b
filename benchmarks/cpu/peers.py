"""The contenders of one process, redblue and its peers. Each is called as its users call it, in its best layout.

`contender` builds a function without arguments for one call. The function computes the results, which `as_tensors`
turns into PyTorch tensors: [out], or [dq, dk, dv]. All contenders use `THREADS` threads and inputs that exist before
the call.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.failures import Refused
from benchmarks.common.gate import REDBLUE
from benchmarks.common.timing import THREADS, fastest
from benchmarks.cpu.calls import DTYPES, Call, Inputs, Run, in_torch, inputs, pytorch

PYTORCH, ONNXRUNTIME, OPENVINO, JAX = "PyTorch", "ONNX Runtime", "OpenVINO", "JAX"
MODULES = {PYTORCH: ("torch",), ONNXRUNTIME: ("onnxruntime", "onnx"), OPENVINO: ("openvino",), JAX: ("jax",)}


def missing(peer: str) -> list[str]:
    """The modules that this peer lacks."""
    return [module for module in MODULES.get(peer, ()) if importlib.util.find_spec(module) is None]


def version(peer: str) -> str:
    return metadata.version(MODULES[peer][0])


def contender(peer: str, call: Call) -> Run:
    """A function that runs the call. Raises Refused if the peer does not support it."""
    makers = {REDBLUE: _redblue, PYTORCH: pytorch, ONNXRUNTIME: _onnxruntime, OPENVINO: _openvino, JAX: _jax}
    return makers[peer](call, inputs(call))


def as_tensors(results: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a contender as tensors (1, H, n, d). JAX's arrays are (1, n, H, d)."""
    return [x if isinstance(x, torch.Tensor) else torch.from_dlpack(x).transpose(1, 2) for x in results]


def _redblue(call: Call, x: Inputs) -> Run:
    mask = rb.Mask.causal() if call.causal else None
    return in_torch(call.direction, x, lambda q, k, v: rb.attention(q, k, v, mask=mask))


def _onnxruntime(call: Call, x: Inputs) -> Run:
    """ONNX Runtime's fused MultiHeadAttention, with K and V in the faster layout: (B, H, n, d) or (B, n, H d)."""
    if call.direction != "forward" or call.dtype != "float32":
        raise Refused("its op has float32 and the forward pass only")
    heads_inside = [array.transpose(1, 2).reshape(1, -1, call.heads * call.d).contiguous() for array in x[:3]]
    return fastest([_onnx_session(call, heads_inside), _onnx_session(call, [heads_inside[0], x.k, x.v])])  # pyright: ignore[reportReturnType]


def _onnx_session(call: Call, arrays: list[torch.Tensor]) -> Run:
    from onnx import TensorProto, helper  # pyright: ignore[reportMissingImports]
    from onnxruntime import InferenceSession, OrtValue, SessionOptions  # pyright: ignore[reportMissingImports]

    out = torch.empty(1, call.n_q, call.heads * call.d)
    options = {"num_heads": call.heads, "unidirectional": int(call.causal)}
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft", **options)
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


def _openvino(call: Call, x: Inputs) -> Run:
    """OpenVINO's operator ScaledDotProductAttention, computed in the type of its inputs."""
    if call.direction != "forward" or call.dtype == "float16":
        raise Refused("its op has no float16 and no backward pass")
    if call.dtype == "bfloat16" and call.n_q == 1:
        raise Refused("its op crashes in bfloat16 with one query (OpenVINO 2026.4.1)")
    ov, ops = importlib.import_module("openvino"), importlib.import_module("openvino.opset13")
    name = {"float32": "f32", "bfloat16": "bf16"}[call.dtype]
    kind = getattr(ov.Type, name)
    parameters = [ops.parameter(list(array.shape), kind, name=letter) for letter, array in zip("qkv", x, strict=False)]
    node = ops.result(ops.scaled_dot_product_attention(*parameters, causal=call.causal))
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


def _jax(call: Call, x: Inputs) -> Run:
    """jax.nn.dot_product_attention under jit, in JAX's layout (B, n, H, d)."""
    os.environ.setdefault("PJRT_NPROC", str(THREADS))  # read when JAX starts its threads
    from benchmarks.cpu.in_jax import compiled, finished

    jax = importlib.import_module("jax")
    if call.direction == "backward":
        raise Refused("its backward pass alone is not timed")
    if call.dtype == "float16":
        raise Refused("its op has no float16 on CPUs")
    arrays = [jax.numpy.from_dlpack(array.transpose(1, 2).contiguous()) for array in x]
    run = compiled(jax.nn.dot_product_attention, call.direction == "training", is_causal=call.causal)
    return lambda: finished(run, arrays)[-3:]
