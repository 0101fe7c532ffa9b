"""Measurements: run each as a module from the repository's root, such as `python -m benchmarks.cpu.attention`."""
