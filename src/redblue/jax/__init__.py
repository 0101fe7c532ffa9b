"""Attention for JAX."""

from redblue.jax.attention import dot_product_attention

__all__ = ["dot_product_attention"]
