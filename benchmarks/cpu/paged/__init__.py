"""The benchmark of attention on paged caches: `python -m benchmarks.cpu.paged`."""
