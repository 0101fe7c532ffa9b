"""Bands of the tests."""

# Bands of the tests: query i attends keys i + first .. i + end - 1; None: without limit
BANDS = [
    (None, None),
    (None, 1),
    (None, 71),
    (None, -20),
    (-40, None),
    (30, None),
    (-50, 11),
    (-3, -1),
    (5, 9),
    (250, 260),
]
