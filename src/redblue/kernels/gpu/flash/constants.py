"""Arguments that all flash kernels share, and the constants that their loops need."""

from __future__ import annotations

from typing import Any, NamedTuple

from redblue.kernels.gpu.launch import Task, array, parts


class Constants(NamedTuple):
    """Numbers known at compile time, which the loops over tiles need.

    A kernel constructs it within the call of a loop. If it were in a variable, Triton would make its fields run-time
    numbers.
    """

    GROUP: Any
    LENGTH: Any  # keys (or rows) of a tile that streams by
    D: Any  # features of q and k
    D1: Any  # features of the second part of q and k; 0: there is only one part
    D_V: Any  # features of v
    V1: Any  # like D1, for v and the output
    PLAIN: Any
    WIDE: Any
    PRECISION: Any


def common_arguments(task: Task, precision: str) -> dict[str, Any]:
    """Arguments of the forward kernel, the kernel of dQ, and the kernel of dK and dV."""
    sizes = task.sizes
    (d0, d1), (v0, v1) = parts(sizes.d), parts(sizes.d_v)
    return {
        "q": array(task.q),
        "k": array(task.k),
        "v": array(task.v),
        "lse": task.lse,
        "scores": task.scores,
        "n_q": sizes.n_q,
        "n_k": sizes.n_k,
        "kv_heads": sizes.kv_heads,
        "GROUP": sizes.group,
        "D": sizes.d,
        "D0": d0,
        "D1": d1,
        "D_V": sizes.d_v,
        "V0": v0,
        "V1": v1,
        "PLAIN": task.plain,
        "WIDE": task.wide,
        "PRECISION": precision,
    }
