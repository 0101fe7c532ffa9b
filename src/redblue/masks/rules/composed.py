"""The patterns of composed rules.

Usually, a composed rule becomes a program for a stack. A rule with many parts on few pairs becomes a boolean array: all
its pairs are tested once.
"""

from __future__ import annotations

import functools

import numpy as np

from redblue.masks.patterns.composed import Inverted, Joined
from redblue.masks.patterns.pattern import Pattern
from redblue.masks.patterns.squares import Squares
from redblue.masks.rules.rule import Rule, every_part

# A mask is tested pair by pair if its rule consists of more than MANY_PARTS rules, composed rules included, and if the
# mask has at most FEW_PAIRS pairs.
MANY_PARTS, FEW_PAIRS = 64, 1 << 20


def composed(rule: Rule, n_q: int, n_k: int) -> Pattern:
    """Return the pattern of a composed rule on n_q queries and n_k keys."""
    entries = _stack_entries(rule)
    if len(entries) > MANY_PARTS and n_q * n_k <= FEW_PAIRS:
        return _evaluated(rule, n_q, n_k)
    return _joined(rule, n_q, n_k, entries)


@functools.lru_cache(maxsize=16)
def _evaluated(rule: Rule, n_q: int, n_k: int) -> Pattern:
    """Test every pair once. With many parts and few pairs, this costs less than the outer and inner sets."""
    attends = _joined(rule, n_q, n_k, _stack_entries(rule)).attends(np.arange(n_q)[:, None], np.arange(n_k)[None])
    return Squares(n_q, n_k, np.broadcast_to(attends, (n_q, n_k)), (1, 1))


def _joined(rule: Rule, n_q: int, n_k: int, entries: dict[int, int]) -> Pattern:
    """Turn a rule into a program. Complements move inwards, to the simple rules. entries: from _stack_entries."""
    program: list[Pattern | np.ufunc] = []
    pending: list[tuple[Rule, bool] | np.ufunc] = [(rule, False)]
    while pending:
        step = pending.pop()
        if isinstance(step, np.ufunc):
            program.append(step)
            continue
        pattern_rule, inverted = step
        if pattern_rule.operator is np.invert:
            pending.append((pattern_rule.parts[0], not inverted))
        elif pattern_rule.operator is not None:
            op = _OPPOSITE[pattern_rule.operator] if inverted else pattern_rule.operator
            # The part that needs most of the stack comes first, so that the stack stays low.
            first, *others = sorted(pattern_rule.parts, key=lambda part: -entries[id(part)])
            for part in reversed(others):
                pending += [op, (part, inverted)]
            pending.append((first, inverted))
        else:
            pattern = pattern_rule.pattern(n_q, n_k)
            program.append(Inverted(n_q, n_k, pattern) if inverted else pattern)
    return program[0] if isinstance(program[0], Pattern) and len(program) == 1 else Joined(n_q, n_k, tuple(program))


_OPPOSITE = {np.bitwise_and: np.bitwise_or, np.bitwise_or: np.bitwise_and}


def _stack_entries(rule: Rule) -> dict[int, int]:
    """The number of values that are held at once while a rule is evaluated, for the rule and each part, by id."""
    entries: dict[int, int] = {}
    for part_rule in every_part(rule):
        needed = sorted((entries[id(part)] for part in part_rule.parts), reverse=True)
        entries[id(part_rule)] = max([1, *needed[:1], *(1 + n for n in needed[1:2])])
    return entries
