"""Floating-point operations of a training step, in its linear layers and in its attention."""

from __future__ import annotations

from redblue.studies.training.model import Shape

# Matrix products of attention. One of the five backward products computes the scores again, as they are not stored.
FORWARD, BACKWARD = 2, 5


def linear_flops(shape: Shape, tokens: int) -> int:
    """Operations of all linear layers, forward and backward: 6 for each weight and token."""
    weights = shape.layers * 12 * shape.d_model**2 + shape.d_model * shape.outputs
    return 6 * weights * tokens


def attention_flops(shape: Shape, pairs: int) -> int:
    """Operations of attention, forward and backward, on the attended pairs of a query and a key."""
    return 2 * (FORWARD + BACKWARD) * shape.layers * pairs * shape.d_model


def attention_share(shape: Shape, tokens: int, pairs: int) -> float:
    """The share of attention in the operations of a step."""
    mine = attention_flops(shape, pairs)
    return mine / (mine + linear_flops(shape, tokens))
