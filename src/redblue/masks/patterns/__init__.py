"""Masks of given sizes: patterns for the algebra, and pairs for the schedules."""
