"""The counterpart of PyTorch's flex_attention."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from redblue.base.errors import RedblueError, UnknownName
from redblue.op.api import is_torch
from redblue.op.checks import check_equal_heads, check_flag

# PyTorch's FlexKernelOptions that only tune its kernels or state assumptions; each may begin with fwd_ or bwd_
TUNING = (
    *("num_warps", "num_stages", "BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "SPLIT_KV"),
    *("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "WRITE_DQ", "FORCE_USE_FLEX_ATTENTION"),
    *("USE_TMA", "kpack", "matrix_instr_nonkdim", "waves_per_eu"),
)


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """The counterpart of torch.nn.attention.flex_attention.flex_attention, with gradients on every device.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev): PyTorch tensors.
    score_mod: a function of (score, b, h, q_idx, kv_idx), traced once per call. It may do these steps, in this order:
    multiply the score by numbers per query and per key, apply a softcap, add terms, and mask. Tensors that score_mod
    captures get their gradients. Other functions raise RedblueError, which holds the traced expression.
    docs/guide/flex.md lists the supported and the refused functions.
    block_mask: a BlockMask. It is converted once, as long as it and the tensors that its mask_mod reads stay the same.
    scale: the factor of the scores; 1 / sqrt(E) if None. enable_gqa: whether Hq may be a multiple of Hkv.
    kernel_options: options that only tune PyTorch's kernels are accepted and change nothing.
    return_lse, return_aux: request the log-sum-exp of each row, (B, Hq, L); return_aux is an AuxRequest.

    Returns out (B, Hq, L, Ev), (out, lse) or (out, AuxOutput), as PyTorch's function. Queries without keys give 0, and
    lse -inf. Raises RedblueError, naming the argument, for an unsupported value.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_torch(x):
            if find_spec("torch") is None:
                raise RedblueError("flex_attention needs PyTorch: pip install 'redblue[torch]'")
            raise RedblueError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
    check_flag("enable_gqa", enable_gqa)
    check_flag("return_lse", return_lse)
    _check_shapes(query, key, value, enable_gqa)
    _check_kernel_options(kernel_options)
    if score_mod is not None and not callable(score_mod):
        raise RedblueError(f"score_mod must be a function of (score, b, h, q_idx, kv_idx), got {score_mod!r}")
    wants_lse, aux_output = _auxiliary(return_lse, return_aux)
    from redblue.op.pytorch.flex import call  # deferred, because it imports PyTorch

    out, lse = call.attention(query, key, value, score_mod, block_mask, scale)
    if aux_output is not None:
        return out, aux_output(lse=lse if wants_lse else None)
    return (out, lse) if wants_lse else out


def _check_shapes(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.is_nested:
            raise RedblueError(f"{name} is a nested tensor: pad it, or pack it and use a mask of documents")
        if x.dim() != 4:
            raise RedblueError(f"{name} must have 4 dimensions (B, H, L, E), got shape {tuple(x.shape)}")
    for name, x in (("key", key), ("value", value)):
        if x.shape[0] not in (1, query.shape[0]):
            raise RedblueError(f"{name} must have the batch size of query, {query.shape[0]}, or 1; got {x.shape[0]}")
        if x.device != query.device:
            raise RedblueError(f"{name} must be on the device of query ({query.device}), got {x.device}")
    if not enable_gqa:
        check_equal_heads(query.shape[1], key.shape[1], value.shape[1])


def _check_kernel_options(options: Any) -> None:
    """Raise RedblueError for an unknown option, and for an option that does more than tune PyTorch's kernels."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise RedblueError(f"kernel_options must be a dictionary or None, got {options!r}")
    for name, value in options.items():
        if name == "BACKEND":
            if value != "AUTO":
                raise RedblueError(
                    f"kernel_options' BACKEND must be 'AUTO', got {value!r}: redblue has its own kernels"
                )
        elif str(name).removeprefix("fwd_").removeprefix("bwd_") not in TUNING:
            raise UnknownName("option of kernel_options", str(name), (*TUNING, "BACKEND"))


def _auxiliary(return_lse: bool, return_aux: Any) -> tuple[bool, Any]:
    """Whether the log-sum-exp is wanted, and PyTorch's AuxOutput if the result is to be one."""
    if return_aux is None:
        return return_lse, None
    if return_lse:
        raise RedblueError("return_lse and return_aux were both given: give return_aux=AuxRequest(lse=True) alone")
    if not hasattr(return_aux, "lse") or not hasattr(return_aux, "max_scores"):
        raise RedblueError(f"return_aux must be an AuxRequest of torch.nn.attention.flex_attention, got {return_aux!r}")
    if return_aux.max_scores:
        raise RedblueError("return_aux asks for max_scores, which redblue's kernels do not keep: ask for lse only")
    from torch.nn.attention.flex_attention import AuxOutput

    return bool(return_aux.lse), AuxOutput
