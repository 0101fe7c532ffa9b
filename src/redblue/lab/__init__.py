"""Counting and planning of schedules: counts, plans for a machine, cache simulation, traces, a reference."""
