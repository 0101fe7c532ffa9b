"""Code shared by all benchmarks: timing in turns, records, and rules for keeping earlier measurements."""
