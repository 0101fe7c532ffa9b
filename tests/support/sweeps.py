"""Helpers of sweep tests: a small sweep, a way to stop a sweep, and a count of its evaluated points."""

from redblue.studies.sweep import runner

SMALL = {"n": "64,100", "d": [8, 24], "words": "60,600", "mask": "full,causal"}


class Stop(Exception):
    pass


def stop_after(points):
    def progress(done, total):
        if done == points:
            raise Stop

    return progress


def counting(monkeypatch):
    """Record the indices of the points that are evaluated from now on, in the returned list."""
    evaluated, real = [], runner.evaluate

    def evaluate(point):
        evaluated.append(point.index)
        return real(point)

    monkeypatch.setattr(runner, "evaluate", evaluate)
    return evaluated
