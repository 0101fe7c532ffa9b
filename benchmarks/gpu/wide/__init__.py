"""Times the kernels for wide heads, tile by tile, then whole calls and their peers."""
