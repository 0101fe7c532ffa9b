"""The installed version of redblue."""

from importlib.metadata import version

VERSION = version("redblue")
