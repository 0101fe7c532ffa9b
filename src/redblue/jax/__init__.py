"""Attention for JAX."""
