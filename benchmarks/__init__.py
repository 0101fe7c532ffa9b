"""Measurements: run each as a module from the repository's root, such as `python -m benchmarks.cpu.attention`.

The first line of each section in docs/results names the command that measures the section. Each module explains its
measurement under `--help`. common/ holds the code that all benchmarks share.
"""
