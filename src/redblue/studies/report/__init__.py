"""The report: the words and times of models on machines, as one HTML page and as a summary for the terminal."""

from redblue.studies.report.data import Report, Shape, collect
from redblue.studies.report.figures import words_figure
from redblue.studies.report.page import check_output, render, write
from redblue.studies.report.terminal import summary

__all__ = ["Report", "Shape", "check_output", "collect", "render", "summary", "words_figure", "write"]
