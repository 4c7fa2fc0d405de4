"""Which of a function's rules match a signature, faster than by asking each of them.

The patterns that rules have for operands are few, and rules share them. So each gets a bit, and a signature that occurs as an
operand is compared with all of them once: its bits say which it matches. A rule for a sum then matches if the bits that it needs
are there among the operands, which is one operation on integers, and if the operands can be shared out among its patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf
from operator import and_, or_
from typing import Any, NamedTuple

from .patterns import Pattern, assign
from .signatures import Signature

MOST_OPERANDS = 10_000  # whose bits are remembered: then they are all forgotten


class _Entry(NamedTuple):
    """A rule, and what its pattern asks for: the bits of the patterns for operands, their number, and properties."""

    rule: Any
    wanted: tuple[int, ...]
    most: float
    mask: int


class RuleIndex:
    """The rules of a function, each for a single pattern (no unions at the top), by what their patterns ask for."""

    def __init__(self, rules: Sequence[Any]):
        self.rules = rules
        self._bits: dict[Pattern, int] = {}  # of patterns for operands
        self._by_class: dict[type | None, list[tuple[Pattern, int]]] = {}  # the same, by the classes that they match; None: any
        self._known: dict[Signature, int] = {}  # the bits of operands
        self._sums: dict[type | None, list[tuple[int, _Entry]]] = {}  # rules that look at commuting operands, with all their bits
        self._others: dict[type | None, list[Any]] = {}
        for rule in rules:
            pattern = rule.pattern
            if pattern.children is not None and pattern.cls._commutative:
                self._sums.setdefault(pattern.cls, []).append(self._entry(rule, pattern))
            else:
                self._others.setdefault(pattern.cls, []).append(rule)

    def _entry(self, rule: Any, pattern: Pattern) -> tuple[int, _Entry]:
        wanted = tuple(map(self._bit, pattern.required))
        return reduce(or_, wanted, 0), _Entry(rule, wanted, inf if pattern.is_open else len(wanted), pattern.mask)

    def _bit(self, pattern: Pattern) -> int:
        bit = self._bits.get(pattern)
        if bit is None:
            self._bits[pattern] = bit = 1 << len(self._bits)
            for cls in {a.cls for a in pattern.alternatives}:
                self._by_class.setdefault(cls, []).append((pattern, bit))
        return bit

    def _bits_of(self, s: Signature) -> int:
        """Which patterns for operands this signature matches."""
        bits = self._known.get(s)
        if bits is None:
            bits = 0
            for cls in (s.cls, None):
                for pattern, bit in self._by_class.get(cls, ()):
                    if pattern.matches(s):
                        bits |= bit
            if len(self._known) >= MOST_OPERANDS:
                self._known.clear()
            self._known[s] = bits
        return bits

    def matching(self, s: Signature) -> list[Any]:
        """The rules whose patterns match every operator with this signature."""
        found = [rule for cls in (s.cls, None) for rule in self._others.get(cls, ()) if rule.pattern.matches(s)]
        entries = self._sums.get(s.cls)
        if not entries or s.children is None:
            return found
        if s.collapsed:
            return found + [entry.rule for _, entry in entries if entry.rule.pattern.matches(s)]
        operands = [self._bits_of(child) for child in s.children]
        present = reduce(or_, operands, 0)
        for rule, wanted, most, mask in [entry for needed, entry in entries if needed & present == needed]:
            if s.mask & mask == mask and len(wanted) <= len(operands) <= most and _can_be_shared_out(wanted, operands):
                found.append(rule)
        return found


def _can_be_shared_out(wanted: Sequence[int], operands: Sequence[int]) -> bool:
    """Whether each of the wanted bits, all of which are there, can have an operand of its own."""
    if len(wanted) < 2:
        return True
    if len(wanted) == 2:  # most rules: two operands for the one and the other, or one for both and another for either
        ours, theirs = ([i for i, bits in enumerate(operands) if bits & bit] for bit in wanted)
        return len(ours) > 1 or len(theirs) > 1 or ours != theirs
    return assign(wanted, operands, and_) is not None
