"""Benchmarks on GPUs."""
