"""Benchmarks on CPUs."""
