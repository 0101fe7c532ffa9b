"""Prints the dependencies of redblue, and the packages named as arguments, that this Python lacks, one per line."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
from pip._vendor.packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for text in [*project["dependencies"], *sys.argv[1:]]:
    need = Requirement(text)
    if need.marker and not need.marker.evaluate():
        continue
    try:
        if not need.specifier.contains(version(need.name), prereleases=True):
            print(text)
    except PackageNotFoundError:
        print(text)
