"""Masks: which (query, key) pairs attend, their algebra, and the forms that schedules and kernels take."""

from redblue.masks.mask import Mask
from redblue.masks.patterns.pairs import Pairs, Runs
from redblue.masks.rules.layouts import Blocks
from redblue.masks.rules.rule import Rule

__all__ = ["Blocks", "Mask", "Pairs", "Rule", "Runs"]
