"""What all benchmarks share: rounds of contenders, records, and which measurements stay true."""
