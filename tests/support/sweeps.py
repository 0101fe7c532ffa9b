"""What the tests of sweeps share: a small sweep, how to stop one, and how to count its points."""

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
    """The indices of the points that are evaluated from now on."""
    evaluated, real = [], runner.evaluate

    def evaluate(point):
        evaluated.append(point.index)
        return real(point)

    monkeypatch.setattr(runner, "evaluate", evaluate)
    return evaluated
