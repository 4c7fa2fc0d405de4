"""How a call chooses among rules: which of them match a signature and in which order, then by guards,
then by cost; and which rules it could not choose between."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import AmbiguityError
from ..status import state
from .patterns import Pattern
from .signatures import Signature
from .subsumption import meet, overlaps, subsumes


class RuleIndex:
    """The rules of a function, each for a single pattern (no unions at the top), by the classes that
    they are for."""

    def __init__(self, rules: Sequence[Rule], base: Rule):
        self.rules, self.base = rules, base
        self._precedes = functools.cache(Rule.precedes)
        self._order = functools.cache(self._ordered)
        self._unmatched = Resolution(base, (base,), ((),))
        self._by_class: dict[type | None, list[Rule]] = {}  # None: any
        for rule in rules:
            self._by_class.setdefault(rule.pattern.cls, []).append(rule)

    def resolve(self, s: Signature) -> Resolution:
        """The rules for this signature, in the order in which they are tried."""
        rules = self._by_class.get(s.cls, []) + self._by_class.get(None, [])
        present = {child.cls for child in s.children} if s.children else set()
        matching = []
        for rule in rules:
            is_possible = not any(map(present.isdisjoint, rule.pattern.operand_classes))
            if is_possible and rule.pattern.matches(s):
                matching.append(rule)
        return self._order(*matching) if matching else self._unmatched

    def _ordered(self, *matching: Rule) -> Resolution:
        order: list[Rule] = []
        left = list(matching)
        while len(left) > 1:
            order.append(self._first_of(left))
            left.remove(order[-1])
        order += left
        rivals = [self._rivals_of(i, order) for i in range(len(order) - 1)] if order[1:] else []
        rivals.append(())
        sole = order[0].when is None and not rivals[0]
        order.append(self.base)
        return Resolution(order[0] if sole else None, tuple(order), (*rivals, ()))

    def _first_of(self, rules: list[Rule]) -> Rule:
        """The first rule that no other precedes."""
        for rule in rules:
            for other in rules:
                if other is not rule and self._precedes(other, rule):
                    break
            else:
                return rule
        return rules[0]

    def _rivals_of(self, i: int, order: list[Rule]) -> tuple[int, ...]:
        """The rules after the i-th that it does not precede. The other alternatives of a rule are
        no rivals of it, nor is what they precede."""
        rivals = []
        for j in range(i + 1, len(order)):
            is_behind = order[j].source is order[i].source
            for rule in order:
                if rule.source is order[i].source and not is_behind:
                    is_behind = self._precedes(rule, order[j])
            if not is_behind:
                rivals.append(j)
        return tuple(rivals)


MOST_MEETS = 256  # alternatives of an overlap that are looked at before a pair is called ambiguous


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, bytes, and seconds as forecast for this machine, NaN where nothing
    is said of them. Costs add."""

    flops: float = 0.0
    memory: float = 0.0
    seconds: float = field(default=math.nan, compare=False)  # which differ between machines

    def __str__(self) -> str:
        flops = _human(self.flops, 1000.0, ("", "k", "M", "G", "T", "P", "E"))
        time = "" if math.isnan(self.seconds) else f", {time_text(self.seconds)}"
        return f"{flops}flop, {memory_text(self.memory)}{time}"

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops, self.memory + other.memory, self.seconds + other.seconds
        )

    @staticmethod
    def of(x: Any) -> Cost:
        """What a `cost=` may return, a `Cost` or a number of flops, as a `Cost`."""
        return x if isinstance(x, Cost) else Cost(float(x))


def _human(x: float, step: float, prefixes: tuple[str, ...]) -> str:
    power = 0 if math.isfinite(x) else len(prefixes)
    while abs(x) >= step * 0.9995 and power < len(prefixes) - 1:
        x, power = x / step, power + 1
    return f"{x:.3g} {prefixes[power] if math.isfinite(x) else ''}"


def memory_text(count: float) -> str:
    """Bytes as `12.3 KiB`."""
    return _human(count, 1024.0, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")) + "B"


def time_text(seconds: float) -> str:
    """A time of two digits: more a forecast does not have."""
    most = {"us": 1e-3, "ms": 1.0, "s": 120.0, "min": 7200.0, "h": math.inf}
    unit = next(unit for unit, limit in most.items() if not seconds >= limit)
    size = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    return f"{float(f'{seconds / size:.2g}'):.5g} {unit}"


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

    def __str__(self) -> str:
        cost = self.cost() if callable(self.cost) else self.cost
        return self.method if cost is None else f"{self.method}, {Cost.of(cost)}"


def perform(result: Any) -> Any:
    """The result of a rule or a base case that was called without its function: a Choice is run."""
    while type(result) is Choice:
        result = result.run()
    return result


@dataclass(eq=False, repr=False)
class Rule:
    """A rule of a function: a pattern, a guard on values, a cost, and what computes the result.

    A rule for a union stands for one rule for each of its alternatives (`alternatives`): it is
    those that are compared, since `PSD[Dense] | PSD[Sum]` is more specific than `Sum` where it
    matters.
    """

    function: str
    implementation: Callable[..., Any]
    pattern: Pattern
    when: Callable[..., bool] | None = None
    cost: Callable[[Any], Any] | None = None
    name: str = ""  # that of the implementation, if not given
    is_base: bool = False
    like: Callable[..., Any] | None = None
    direct: bool = False
    estimates: bool = False
    hereditary: bool = False
    # what it takes beyond the operator: names, and places among all
    guard_arguments: tuple[tuple[str, int], ...] = ()
    like_arguments: tuple[tuple[str, int], ...] = ()
    # of `simplify`, where the rule asks the function again of another operator
    rewritten_by: Rule | None = None

    def __post_init__(self) -> None:
        f = self.implementation
        self.name = self.name or str(getattr(f, "__name__", type(f).__name__))
        summary = (inspect.getdoc(f) or "").partition("\n\n")[0]
        self.identity = " ".join(summary.split("\n"))
        self.number: tuple[int, ...] = (next(_numbers),)  # its place among the rules as written
        self.source = self  # the rule as written

    def alternatives(self) -> list[Rule]:
        """The rules for single patterns that this one stands for."""
        if len(self.pattern.alternatives) == 1:
            return [self]
        parts = [copy.copy(self) for _ in self.pattern.alternatives]
        for i, (part, pattern) in enumerate(zip(parts, self.pattern.alternatives)):
            part.number, part.pattern, part.source = (*self.number, i), pattern, self
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


_numbers = itertools.count()


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

    costs = [Cost.of(rule.cost(A)) for rule in contenders]  # type: ignore[misc]
    are_timed = not any(math.isnan(cost.seconds) for cost in costs)

    def price(i: int) -> tuple[Any, ...]:
        cost = costs[i]
        return cost.seconds if are_timed else cost.flops, cost.memory, contenders[i].number

    return contenders[min(range(len(costs)), key=price)]


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
    common = list(itertools.islice(meet(a.pattern, b.pattern), MOST_MEETS + 1))
    return len(common) <= MOST_MEETS and all(any(subsumes(d, m) for d in deciders) for m in common)
