"""Kinds of masks as values without sizes: one file per kind of rule."""
