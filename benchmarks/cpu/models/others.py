"""The peers of the grid that need their own PyTorch. Their processes import this module, not redblue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Refused
from benchmarks.common.gate import unfused
from benchmarks.common.other_process import NEWEST_PYTORCH, VLLM, ZENTORCH
from benchmarks.common.timing import fastest
from benchmarks.cpu.calls import Call, Inputs, Run, in_torch, inputs, pytorch
from benchmarks.cpu.paged.others import BLOCK, vllm_attention


def zentorch(call: Call, x: Inputs) -> Run:
    """zentorch's SDPA, which has no backward pass."""
    if call.direction != "forward":
        raise Refused("its SDPA has no backward pass")
    sdpa = torch.ops.zentorch.zentorch_sdpa
    return in_torch(call.direction, x, lambda q, k, v: sdpa(q, k, v, 0.0, call.causal)[0])


def newest_pytorch(call: Call, x: Inputs) -> Run:
    """PyTorch's SDPA or, if that is faster, oneDNN's, into which torch.jit fuses the textbook expression."""
    ways = [pytorch(call, x)]
    if call.direction == "forward" and not call.causal:

        def textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return unfused(q, k, v, scale=call.d**-0.5)

        torch.jit.enable_onednn_fusion(True)
        fused = torch.jit.trace(textbook, x[:3], check_trace=False)
        ways.append(lambda: [fused(*x[:3])])  # pyright: ignore[reportCallIssue]
    return fastest(ways)  # pyright: ignore[reportReturnType]


def vllm(call: Call, x: Inputs) -> Run:
    """vLLM's op on consecutive pages: all heads in one sequence or, if that is faster, a sequence per head."""
    if call.direction != "forward":
        raise Refused("its op has no backward pass")
    q, k, v = x[:3]
    pages = torch.arange(call.heads * -(-call.n_k // BLOCK))
    rows = [array[0].transpose(0, 1).contiguous() for array in (k, v)]
    heads = [(k_head[:, None], v_head[:, None]) for k_head, v_head in zip(k[0], v[0], strict=True)]
    one = vllm_attention(q.transpose(1, 2), [(rows[0], rows[1])], pages[: -(-call.n_k // BLOCK)], call.causal)
    many = vllm_attention(q[0, :, :, None], heads, pages, call.causal)
    return fastest([lambda: [one().transpose(1, 2)], lambda: [many().permute(2, 0, 1, 3)]])  # pyright: ignore[reportReturnType]


MAKERS: dict[str, Callable[[Call, Inputs], Run]] = {ZENTORCH: zentorch, NEWEST_PYTORCH: newest_pytorch, VLLM: vllm}


def make(peer: str, call: dict[str, Any]) -> Run:
    """A run of the call, for benchmarks/common/child.py."""
    made = Call(**call)
    return MAKERS[peer](made, inputs(made))
