"""Short curves, computed once, for all tests of the report: a curve takes seconds, and drawing its points a second."""

import pytest

from redblue.studies.report.curves import curve


@pytest.fixture(autouse=True, scope="session")
def short_curves():
    """Reports draw curves of 12 points; later reports of the same problem and machines get the same curve."""
    kept = {}

    def kept_curve(problem, memories):
        key = repr((problem, memories))
        if key not in kept:
            kept[key] = curve(problem, memories, points=12)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redblue.studies.report.data.curve", kept_curve)
        yield
