"""Checks and times variants of the Hopper forward kernel, each in a worker process."""
