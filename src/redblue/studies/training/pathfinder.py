"""Pathfinder (Linsley et al. 2018; Long Range Arena): do two marked points lie on the same dashed path?

An image has two long paths and some short ones. The marked points are the two ends of one long path, or one end of
each long path. The distance between paths ensures that no two paths touch, even if all gaps of the dashes are filled.
"""

from __future__ import annotations

import numpy as np

APART = 3  # pixels between paths, in either direction; a gap in a path is 1 pixel
DASH = 3  # every third pixel of a path is left out, never its ends
INK, MARK = 1, 2
SYMBOLS = 3
STEPS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))  # clockwise
Path = list[tuple[int, int]]


def lengths(side: int) -> tuple[int, int]:
    """Pixels of a long path and of a distracting one."""
    return side // 2 + 2, side // 5


def walk(random: np.random.Generator, taken: np.ndarray, length: int) -> Path:
    """Draw a path of `length` pixels, with gentle turns, away from taken pixels and from its own earlier pixels."""
    side = len(taken)
    while True:
        heading = int(random.integers(8))
        path: Path = [(int(random.integers(side)), int(random.integers(side)))]
        while len(path) < length:
            heading += int(random.integers(-1, 2)) if random.random() < 0.4 else 0
            y, x = (a + b for a, b in zip(path[-1], STEPS[heading % 8], strict=True))
            free = 0 <= y < side and 0 <= x < side and not taken[y, x]
            if not free or any(max(abs(y - a), abs(x - b)) < APART for a, b in path[: -APART - 1]):
                break
            path.append((y, x))
        if len(path) == length and not taken[path[0]]:
            return path


def image(random: np.random.Generator, side: int, distractors: int) -> tuple[np.ndarray, int]:
    """Draw an image (side, side) of 0, INK and MARK, and its label: whether one path connects the marks."""
    pixels, taken = np.zeros((side, side), np.int64), np.zeros((side, side), bool)
    long, short = lengths(side)
    paths = list[Path]()
    for length in (long, long, *[short] * distractors):
        path = walk(random, taken, length)
        for i, (y, x) in enumerate(path):
            taken[max(0, y - APART + 1) : y + APART, max(0, x - APART + 1) : x + APART] = True
            if i in (0, length - 1) or i % DASH:
                pixels[y, x] = INK
        paths.append(path)
    label = int(random.integers(2))
    ends = (paths[0][0], paths[0][-1]) if label else (paths[0][0], paths[1][-1])
    for end in ends:
        pixels[end] = MARK
    return pixels, label


def batch(seed: tuple[int, ...], size: int, side: int, distractors: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Draw `size` images. Returns their pixels, row by row (size, side * side), and their labels."""
    random = np.random.default_rng(seed)
    drawn = [image(random, side, distractors) for _ in range(size)]
    return np.stack([pixels.ravel() for pixels, _ in drawn]), np.array([label for _, label in drawn])
