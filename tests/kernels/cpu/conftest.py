"""Mark variants of tests as thorough: `make test` tries every pair of values of two parameters, not all combinations.

So every instruction set runs with every type of numbers, every kind of tiles and every option.
"""

from pathlib import Path

import pytest

from support.variants import leave_most_to_thorough


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items):
    """Leave most combinations of values to `make test-thorough`."""
    leave_most_to_thorough(items, Path(__file__).parent, together=2)
