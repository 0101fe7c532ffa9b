"""The compiled core, `_core`: kernels, simulated caches, pebble games, meters. Its types are in `_core.pyi`."""
