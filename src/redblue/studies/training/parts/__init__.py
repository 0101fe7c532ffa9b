"""The parts of `redblue experiment training`: each has points, a run in a separate process, tables and findings."""
