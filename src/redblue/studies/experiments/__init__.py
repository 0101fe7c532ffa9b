"""Experiments: `redblue experiment NAME` measures, and writes a figure and a page of docs/results."""

from redblue.studies.experiments.catalogue import NAMES, get
from redblue.studies.experiments.result import Result, read, read_all
from redblue.studies.experiments.runner import journal_of, redraw, run

__all__ = ["NAMES", "Result", "get", "journal_of", "read", "read_all", "redraw", "run"]
