"""Measurements: run each as a module from the repository's root, such as `python -m benchmarks.cpu.attention`.

The headings of docs/results/README.md name the module that measures each table. Each module explains its
measurement under `--help`. common/ holds the code that all benchmarks share.
"""
