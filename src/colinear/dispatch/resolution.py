"""Which of a function's rules match a signature, faster than by asking each of them.

The patterns that rules have for operands are few, and rules share them. So each gets a bit, and a
signature that occurs as an operand is compared with all of them once: its bits say which it
matches. A rule for a sum then matches if the bits that it needs are there among the operands, which
is one operation on integers, and if the operands can be shared out among its patterns.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import and_, or_
from typing import Any, NamedTuple

from ..errors import AmbiguityError
from ..status import state
from .patterns import Pattern, assign
from .signatures import Signature
from .subsumption import meet, overlaps, subsumes

# Which of a function's rules match a signature, faster than by asking each of them.
#
# The patterns that rules have for operands are few, and rules share them. So each gets a bit, and
# a signature that occurs as an operand is compared with all of them once: its bits say which it
# matches. A rule for a sum then matches if the bits that it needs are there among the operands,
# which is one operation on integers, and if the operands can be shared out among its patterns.


MOST_OPERANDS = 10_000  # whose bits are remembered: then they are all forgotten


class _Entry(NamedTuple):
    """A rule, and what its pattern asks for: the bits of the patterns for operands, their
    number, and properties."""

    rule: Any
    wanted: tuple[int, ...]
    most: float
    mask: int


class RuleIndex:
    """The rules of a function, each for a single pattern (no unions at the top), by what their
    patterns ask for."""

    def __init__(self, rules: Sequence[Rule], base: Rule):
        self.rules, self.base = rules, base
        self._precedence: dict[tuple[int, int], bool] = {}  # of pairs of rules
        self._resolutions: dict[tuple[Rule, ...], Resolution] = {}  # by the rules that match
        self._bits: dict[Any, int] = {}  # of patterns for operands, by their keys
        # the same, by the classes that they match; None: any
        self._by_class: dict[type | None, list[tuple[Pattern, int]]] = {}
        self._known: dict[Signature, int] = {}  # the bits of operands
        # rules that look at commuting operands, with all their bits
        self._sums: dict[type | None, list[tuple[int, _Entry]]] = {}
        self._others: dict[type | None, list[Any]] = {}
        for rule in rules:
            pattern = rule.pattern
            if pattern.children is not None and pattern.cls._commutative:
                self._sums.setdefault(pattern.cls, []).append(self._entry(rule, pattern))
            else:
                self._others.setdefault(pattern.cls, []).append(rule)

    def _entry(self, rule: Any, pattern: Pattern) -> tuple[int, _Entry]:
        wanted = tuple(map(self._bit, pattern.required))
        return reduce(or_, wanted, 0), _Entry(
            rule, wanted, inf if pattern.is_open else len(wanted), pattern.mask
        )

    def _bit(self, pattern: Pattern) -> int:
        new = 1 << len(self._bits)
        bit = self._bits.setdefault(pattern.key, new)
        if bit == new:
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

    def resolve(self, s: Signature) -> Resolution:
        """The rules for this signature, in the order in which they are tried."""
        matching = tuple(self.matching(s))
        found = self._resolutions.get(matching)
        if found is None:
            found = self._resolutions[matching] = self._ordered(list(matching))
        return found

    def _ordered(self, matching: list[Rule]) -> Resolution:
        order: list[Rule] = []
        while matching:
            first = (
                r
                for r in matching
                if not any(self._precedes(other, r) for other in matching if other is not r)
            )
            order.append(next(first, matching[0]))
            matching.remove(order[-1])
        rivals = [self._rivals_of(i, order) for i in range(len(order))]
        sole = not order or (order[0].when is None and not rivals[0])
        order.append(self.base)
        return Resolution(order[0] if sole else None, tuple(order), (*rivals, ()))

    def _precedes(self, a: Rule, b: Rule) -> bool:
        known = self._precedence.get((a.key, b.key))
        if known is None:
            self._precedence[a.key, b.key] = known = a.precedes(b)
        return known

    def _rivals_of(self, i: int, order: list[Rule]) -> tuple[int, ...]:
        """The rules after the i-th that it does not precede. The other alternatives of a rule are
        no rivals of it, nor is what they precede."""
        same = [rule for rule in order if rule.source is order[i].source]
        return tuple(
            j
            for j in range(i + 1, len(order))
            if not any(rule is order[j] or self._precedes(rule, order[j]) for rule in same)
        )

    def matching(self, s: Signature) -> list[Any]:
        """The rules whose patterns match every operator with this signature."""
        found = [
            rule
            for cls in (s.cls, None)
            for rule in self._others.get(cls, ())
            if rule.pattern.matches(s)
        ]
        entries = self._sums.get(s.cls)
        if not entries or s.children is None:
            return found
        if s.collapsed:
            return found + [entry.rule for _, entry in entries if entry.rule.pattern.matches(s)]
        operands = [self._bits_of(child) for child in s.children]
        present = reduce(or_, operands, 0)
        for rule, wanted, most, mask in [
            entry for needed, entry in entries if needed & present == needed
        ]:
            if (
                s.mask & mask == mask
                and len(wanted) <= len(operands) <= most
                and _can_be_shared_out(wanted, operands)
            ):
                found.append(rule)
        return found


def _can_be_shared_out(wanted: Sequence[int], operands: Sequence[int]) -> bool:
    """Whether each of the wanted bits, all of which are there, can have an operand of its own."""
    if len(wanted) < 2:
        return True
    # most rules: two operands for the one and the other, or one for both and another for either
    if len(wanted) == 2:
        ours, theirs = ([i for i, bits in enumerate(operands) if bits & bit] for bit in wanted)
        return len(ours) > 1 or len(theirs) > 1 or ours != theirs
    return assign(wanted, operands, and_) is not None


# How a call chooses among rules: specificity first, then guards, then cost; and which rules it
# could not choose between.


MOST_MEETS = 256  # alternatives of an overlap that are looked at before a pair is called ambiguous


@dataclass(frozen=True)
class Cost:
    """Floating-point operations and bytes. Costs add."""

    flops: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.memory + other.memory)

    @staticmethod
    def of(x: Any) -> Cost:
        """What a `cost=` may return, a `Cost` or a number of flops, as a `Cost`."""
        return x if isinstance(x, Cost) else Cost(float(x))


class Choice(NamedTuple):
    """What a base case or a rule has decided to do, before it does it: a call runs it, `explain`
    prints it.

    Attributes
    ----------
    run : callable
        `run()` does it.
    method : str
        The name of the algorithm; the rule's own, if it is empty.
    cost : Cost, number of flops or callable that returns one, optional
        None where it is that of the functions that `run` calls.
    why : str or callable that returns one
        Why this was chosen, or the identity behind it.
    like : callable, optional
        `like()` is something of the type and shape of the result that costs nothing; None where
        `run` only asks other functions, so that `explain` runs it.
    """

    run: Callable[[], Any]
    method: str = ""
    cost: Any = None
    why: Any = ""
    like: Callable[[], Any] | None = None


def perform(result: Any) -> Any:
    """The result of a rule or a base case that was called without its function: a Choice is run."""
    while type(result) is Choice:
        result = result.run()
    return result


class Rule:
    """A rule of a function: a pattern, a guard on values, a cost, and what computes the result.

    A rule for a union stands for one rule for each of its alternatives (`alternatives`): it is
    those that are compared, since `PSD[Dense] | PSD[Sum]` is more specific than `Sum` where it
    matters.
    """

    def __init__(
        self,
        function: str,
        implementation: Callable[..., Any],
        pattern: Pattern,
        when: Callable[..., bool] | None = None,
        cost: Callable[[Any], Any] | None = None,
        name: str | None = None,
        is_base: bool = False,
        like: Callable[..., Any] | None = None,
        direct: bool = False,
        estimates: bool = False,
        hereditary: bool = False,
    ):
        self.function, self.implementation, self.pattern = function, implementation, pattern
        self.when, self.cost, self.is_base, self.like = when, cost, is_base, like
        # what it takes beyond the operator: names, and places among all
        self.guard_arguments: tuple[tuple[str, int], ...] = ()
        self.like_arguments: tuple[tuple[str, int], ...] = ()
        self.direct, self.estimates, self.hereditary = direct, estimates, hereditary
        self.name = str(name or getattr(implementation, "__name__", type(implementation).__name__))
        summary = (inspect.getdoc(implementation) or "").partition("\n\n")[0]
        self.identity = " ".join(summary.split("\n"))
        self.key = next(_keys)
        self.number: tuple[int, ...] = (self.key,)  # its place among the rules as written
        self.source = self  # the rule as written
        # of `simplify`, where the rule asks the function again of another operator
        self.rewritten_by: Rule | None = None

    def alternatives(self) -> list[Rule]:
        """The rules for single patterns that this one stands for."""
        if len(self.pattern.alternatives) == 1:
            return [self]
        parts = [copy.copy(self) for _ in self.pattern.alternatives]
        for i, (part, pattern) in enumerate(zip(parts, self.pattern.alternatives)):
            part.key, part.number, part.pattern, part.source = (
                next(_keys),
                (*self.number, i),
                pattern,
                self,
            )
        return parts

    def holds(self, A: Any, arguments: tuple[Any, ...] = ()) -> bool:
        """Whether the guard lets it through."""
        if self.when is None:
            return True
        if not self.guard_arguments or not arguments:
            return bool(self.when(A))
        return bool(self.when(A, **{name: arguments[i] for name, i in self.guard_arguments}))

    def precedes(self, other: Rule) -> bool:
        """Whether it is tried before the other wherever both match."""
        if not subsumes(other.pattern, self.pattern):
            return False
        if not subsumes(self.pattern, other.pattern):
            return True
        if (self.when is None) != (other.when is None):
            return other.when is None
        costed = self.cost is not None and other.cost is not None
        return self.when is not None and not costed and self.number < other.number

    def __repr__(self) -> str:
        return f"{self.function}: {self.name} for {self.pattern!r}" + (
            f", when {guard_name(self)}" if self.when else ""
        )


_keys = itertools.count()


def guard_name(rule: Rule) -> str:
    return getattr(rule.when, "__name__", repr(rule.when))


class Resolution(NamedTuple):
    """The rules for one signature. `sole`: the only one that can be meant, if that is clear
    without looking at values."""

    sole: Rule | None
    order: tuple[Rule, ...]  # the more specific first, the base case last
    rivals: tuple[tuple[int, ...], ...]  # for each, those after it that it does not precede


# --------------------------------------------------------------------------------------------------


def decide(A: Any, found: Resolution, arguments: tuple[Any, ...] = ()) -> Rule:
    """The first rule whose guard holds; among equals, the cheapest."""
    was_choosing, state.is_choosing = state.is_choosing, True
    i = 0
    try:
        while not found.order[i].holds(A, arguments):  # the base case, the last, always does
            i += 1
        if not found.rivals[i]:
            return found.order[i]
        contenders = _contenders(A, i, found, arguments)
    finally:
        state.is_choosing = was_choosing
    if len(contenders) == 1:
        return contenders[0]
    if any(r.cost is None for r in contenders):
        raise AmbiguityError(_ambiguous(contenders))
    costs = [Cost.of(r.cost(A)) for r in contenders]  # type: ignore[misc]
    return min(
        zip(costs, contenders), key=lambda pair: (pair[0].flops, pair[0].memory, pair[1].number)
    )[1]


def _contenders(A: Any, i: int, found: Resolution, arguments: tuple[Any, ...]) -> list[Rule]:
    """The i-th rule, the first that holds, and those rules that hold and that no other that
    holds precedes."""
    holding = [j for j in found.rivals[i] if found.order[j].holds(A, arguments)]
    beaten = {k for j in holding for k in holding if k > j and k not in found.rivals[j]}
    return [found.order[i], *(found.order[j] for j in holding if j not in beaten)]


def _ambiguous(rules: Sequence[Rule]) -> str:
    names = " and ".join(f"{r.name} (for {r.pattern!r})" for r in rules)
    return (
        f"{rules[0].function}: the rules {names} apply, and none is more specific. "
        f"Add a rule for what matches both, or give all of them a cost=."
    )


# --------------------------------------------------------------------------------------------------


class AmbiguousPair(NamedTuple):
    """Two rules of a function that can both apply where neither is more specific."""

    function: str
    first: Rule
    second: Rule

    def __str__(self) -> str:
        return _ambiguous((self.first, self.second))


def ambiguous_pairs(rules: Sequence[Rule]) -> Iterator[AmbiguousPair]:
    """The pairs of a function's rules that overlap with neither more specific, where neither
    costs nor other rules decide."""
    rules = [part for rule in rules for part in rule.alternatives()]
    for a, b in itertools.combinations(rules, 2):
        if (
            a.source is b.source
            or (a.cost is not None and b.cost is not None)
            or a.precedes(b)
            or b.precedes(a)
        ):
            continue
        if overlaps(a.pattern, b.pattern) and not _decided(rules, a, b):
            yield AmbiguousPair(a.function, a, b)


def _decided(rules: Sequence[Rule], a: Rule, b: Rule) -> bool:
    sure = [r for r in rules if r.when is None or r.source in (a.source, b.source)]
    deciders = [r.pattern for r in sure if r.precedes(a) and r.precedes(b)]
    if not deciders:
        return False
    common = list(itertools.islice(meet(a.pattern, b.pattern), MOST_MEETS + 1))
    return len(common) <= MOST_MEETS and all(any(subsumes(d, m) for d in deciders) for m in common)
