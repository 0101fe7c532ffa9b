"""Studies on top of the laboratory: sweeps, experiments, the report, and the comparison of sparse masks."""
