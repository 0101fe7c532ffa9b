"""Attention in JAX under jit, as functions of query, key, value and the gradient of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax  # pyright: ignore[reportMissingImports]


def compiled(attend: Callable[..., Any], both: bool, **options: Any) -> Callable[..., tuple[Any, ...]]:
    """The forward pass, which returns (out,), or both passes, which return (out, dq, dk, dv)."""
    forward = partial(attend, **options)

    def passes(q: Any, k: Any, v: Any, dout: Any) -> tuple[Any, ...]:
        out, backward = jax.vjp(forward, q, k, v)
        return out, *backward(dout)

    return jax.jit(passes if both else lambda q, k, v, dout: (forward(q, k, v),))


def finished(run: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The results of a call, once they are computed."""
    return jax.block_until_ready(run(*inputs))
