"""The meter: words that a kernel really moves."""
