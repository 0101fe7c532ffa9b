"""Formats in which a mask is stored as an index, their sizes in words, and their names."""
