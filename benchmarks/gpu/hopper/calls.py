"""The tensors and the settings of a row."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.gpu.hopper.rows import HEADS, LENGTH


def tensors(row: dict[str, Any], device: str) -> tuple[Any, Any, Any]:
    import torch

    dtype = getattr(torch, row.get("dtype", "bfloat16"))
    timed = row["what"] == "time"
    n_q, n_k = (LENGTH, LENGTH) if timed else row["n"]
    batch = row.get("batch", 1 if timed else 2)
    heads, kv_heads = (HEADS, HEADS) if timed else row.get("heads", (3, 3))
    d, d_v = row["d"], row.get("d_v", row["d"])
    make = torch.randn if device == "cuda" else torch.empty

    def array(count: int, n: int, features: int) -> Any:
        if row.get("rows_outside"):
            return make(batch, n, count, features, dtype=dtype, device=device).transpose(1, 2)
        return make(batch, count, n, features, dtype=dtype, device=device)

    q, k, v = array(heads, n_q, d), array(kv_heads, n_k, d), array(kv_heads, n_k, d_v)
    if row.get("nan") and device == "cuda":  # keys that no query attends
        k[:, :, n_q:] = math.nan
        v[:, :, n_q:] = math.nan
    return q, k, v


def settings_of(row: dict[str, Any]) -> Any:
    from redblue.kernels.gpu.planning.by_gluon import settings

    mask = "full" if row["mask"] == "full" else "band"
    return settings(row["d"], row.get("d_v", row["d"]), mask)[0]._replace(**row.get("settings", {}))
