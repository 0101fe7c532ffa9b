"""Attention for JAX on CPUs, with the signature of jax.nn.dot_product_attention."""

from redblue.jax.attention import dot_product_attention, register_kernels

__all__ = ["dot_product_attention", "register_kernels"]
