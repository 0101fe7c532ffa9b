"""Masks laid on given sizes: patterns for the algebra, and pairs for the schedules."""
