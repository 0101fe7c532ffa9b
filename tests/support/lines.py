"""Helpers of cache tests: lines of 16 words, machines of one level, and runs."""

from redblue import schedules
from redblue.lab import counts
from redblue.machine import Cached, CacheLevel

LINE_BYTES, WORD_BYTES = 64, 4
LINE = LINE_BYTES // WORD_BYTES  # words


def level(lines, ways=None, name="L1"):
    return CacheLevel(name, lines * LINE_BYTES, LINE_BYTES, ways)


def figures(level):
    return level.hits, level.misses, level.fills, level.write_backs, level.dead_write_backs


def lines_of(words):
    return -(-words // LINE)


def machine_of(lines, **options):
    return Cached([level(lines)], WORD_BYTES, **options)


def run(schedule, problem, tiles, machine):
    counts.execute(schedules.get(schedule), problem, schedules.get(schedule).make_tiles(problem, tiles), machine)
    return machine
