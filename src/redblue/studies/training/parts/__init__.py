"""The parts of `redblue experiment training`: each has points, a run in a process of its own, tables and findings."""
