"""The installed version of redblue."""

from importlib.metadata import version

__version__ = version("redblue")
