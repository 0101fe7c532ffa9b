"""Masks: which (query, key) pairs attend, their algebra, and the forms that schedules and kernels take."""

from redblue.masks.bands import Band, Window
from redblue.masks.layouts import Blocks
from redblue.masks.mask import Mask
from redblue.masks.pairs import Pairs, Runs, TileSums, Transposed
from redblue.masks.rule import Rule

__all__ = ["Band", "Blocks", "Mask", "Pairs", "Rule", "Runs", "TileSums", "Transposed", "Window"]
