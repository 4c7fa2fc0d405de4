"""`Function`: how a call finds its rule and runs it."""

from __future__ import annotations

import difflib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar

from ..clock import CLOCKS, DISPATCH, OTHER, as_part, clocked, may_tick, running
from ..info import Info, Scope, planning, reported, state, summarise
from ..status import (
    ON_FAILURE,
    Test,
    combine,
    deliver,
    failed,
    overlook,
    settle,
    tell_later,
    unread_statuses,
)
from . import calls, signatures
from .calls import (
    ANSWERED_BY,
    NotForPart,
    algorithm_of,
    check_parameters,
    not_a_method,
    positional,
    retry_deeper,
    unfit,
    why_whole,
)
from .patterns import Pattern
from .resolution import Choice, Resolution, Rule, RuleIndex, decide
from .signatures import Signature, describe, from_description, signature

MOST_STRUCTURES = 10_000  # that a function remembers: then it forgets them all

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class Function:
    """A function of linear operators that is open to new rules. Made by `function`; called like any
    Python function.

    Attributes
    ----------
    name : str
    base : callable
        What is called where no rule applies.
    rules : list of Rule
    """

    name: str
    base: Callable[..., Any]
    rules: list[Rule]
    examples: dict[str, Callable[[Any], Any]]
    forwards: bool
    suits: Callable[[Any, Any], bool]
    rewrites: bool | Function
    lends: bool  # whether it is ours, so that NumPy may compute it for others
    one_column: Callable[..., bool] | None
    by_method: Callable[..., Any] | None
    implicit: Callable[[Any], Any] | None = None  # decorates rules that go by eigenvectors
    parameters: tuple[str, ...]  # of rules, the operator first
    operand: int  # where the operator stands in a call
    _method_at: int | None  # where the method stands among the arguments after the operator

    def __init__(self, name: str, base: Callable[..., Any]):
        self.name, self.base, self.rules = name, base, []
        self.__name__ = self.__qualname__ = name
        self.__module__ = getattr(base, "__module__", __name__)
        self.base_rule = Rule(name, positional(base), Pattern(None), is_base=True)
        self._parts: list[Rule] = []  # the rules, those for unions taken apart
        self._index = RuleIndex(self._parts, self.base_rule)
        self._cache: dict[Signature, Resolution] = {}
        self._rewritings: dict[tuple[int, ...], Rule] = {}
        self._answered_by = ANSWERED_BY.get(name, name)
        self._number = next(_numbers)
        _functions[self._number] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # each function's own class has one with its own parameters

    def __get__(self, instance: Any, owner: Any = None) -> Self:
        """Itself. (It is there so that `help` shows a function, not an instance of a class.)"""
        return self

    def _call(
        self, A: Any, arguments: tuple[Any, ...], info: bool = False, on_failure: str = "warn"
    ) -> Any:
        """A call whose arguments have been sorted into the operator and the rest, as rules take
        them."""
        if calls.modes and calls.are_strict(A):
            return calls.ordinary(self._call, A, arguments, info, on_failure)
        if (info or on_failure == "raise") and state.current is None and may_tick():
            return clocked(self._call, A, arguments, info, on_failure)
        method = None if self._method_at is None else arguments[self._method_at]
        if method is not None and not getattr(type(method), "_is_method", False):
            raise not_a_method(self.name, method)
        if not hasattr(type(A), "_is_root"):
            A = _converter(A)
            if calls.modes:  # which may ask more of an operator than of an array
                return self._call(A, arguments, info, on_failure)
        outer = state.current
        is_users = outer is None or outer.planner is not None  # or `explain`'s, for a user
        if is_users and self.lends and A._context.backend in calls.LENDERS:
            result = _elsewhere(self, A, arguments, info, on_failure)
            if result is not NotImplemented:
                return result
        if outer is None:
            state.call = None
        find = as_part(DISPATCH, self.find) if CLOCKS else self.find
        chosen = find(A, arguments)
        call = self._run if method is None else self._call_by_method
        try:
            return call(chosen, A, arguments, info, on_failure)
        except RecursionError:
            return retry_deeper(call, chosen, A, arguments, info, on_failure)

    def method_among(self, arguments: tuple[Any, ...]) -> Any:
        """The method among the arguments after the operator, None if there is none."""
        return None if self._method_at is None else arguments[self._method_at]

    def _call_by_method(
        self,
        chosen: Rule,
        A: Any,
        arguments: tuple[Any, ...],
        info: bool = False,
        on_failure: str = "warn",
    ) -> Any:
        """Call by a method that was named: on A itself, or on the parts that a rule splits A into.

        A rule may split A only if each part that the method reaches is known to have what the
        method needs. Where one is not, `NotForPart` leaves the rule, up to the innermost call whose
        operator is known to have it, or else to the outermost one, for which the word of the user
        is taken: that call runs the method on the whole.
        """
        method = arguments[self._method_at]  # type: ignore[index]
        if getattr(method, "progress", False) and _may_be_watched():
            with method.watching():
                return self._call_by_method(chosen, A, arguments, info, on_failure)
        why = why_whole(chosen, method, A)
        displaced = (chosen, why) if why else None
        chosen = self.base_rule if why else chosen
        if chosen.is_base and not self.forwards and hasattr(method, self._answered_by):
            chosen = self._rule_of_method(method)
        if not getattr(method, "needs", 0):
            return self._run(chosen, A, arguments, info, on_failure, displaced)
        outer = state.split
        is_trusted = outer is not type(method) or self.suits(A, method)
        if chosen.is_base:
            if not (is_trusted or self.forwards):
                raise unfit(method, A)
            return self._run(chosen, A, arguments, info, on_failure, displaced)
        reports = reported()
        count = len(reports)
        # What an estimator needs must be known of the part itself: it takes no one's word.
        is_inherited = chosen.hereditary and is_trusted and not method.is_stochastic
        state.split = None if is_inherited else type(method)
        try:
            return self._run(chosen, A, arguments, info, on_failure)
        except NotForPart as reason:
            if not is_trusted:
                raise
            displaced = (chosen, reason.args[0])
        finally:
            state.split = outer
        del reports[count:]  # of the parts before
        return self._run(self.base_rule, A, arguments, info, on_failure, displaced)

    def _rule_of_method(self, method: Any) -> Rule:
        """What takes the place of the base case where the method brings an algorithm of its
        own."""
        own: Any = algorithm_of(method, self.name)
        at: Any = self._method_at

        def answer(A: Any, *arguments: Any) -> Any:
            if self.by_method is not None:
                return self.by_method(own, A, *arguments)
            run = functools.partial(own, A, *arguments[:at], *arguments[at + 1 :])
            return Choice(run, method.name, why="asked for")

        return Rule(self.name, answer, Pattern(None), name=self.base_rule.name, is_base=True)

    def _run(
        self,
        chosen: Rule,
        A: Any,
        arguments: tuple[Any, ...],
        info: bool = False,
        on_failure: str = "warn",
        displaced: Any = None,
    ) -> Any:
        """Run the rule that was chosen. `displaced`: one that the method does not allow, and
        why."""
        outer = state.current
        if outer is not None and outer.planner is not None:
            result = outer.planner.call(self, chosen, A, arguments, displaced)
            return (result, Info(function=self.name, rule=chosen.name)) if info else result
        if info or on_failure != "warn":
            return self._call_for_info(chosen, A, arguments, info, on_failure)
        if outer is None:
            if state.display is not None:
                return self._call_for_info(chosen, A, arguments, info, on_failure)
            outermost = state.current = Scope([])
        elif outer.is_detailed:
            result, gathered = self._call_and_gather(chosen, A, arguments)
            outer.reports.append(gathered)
            return result
        try:
            if CLOCKS:
                result, _ = self._perform(chosen, A, arguments)
            else:
                result = chosen.implementation(A, *arguments)
                while type(result) is Choice:
                    result = result.run()
        except BaseException:
            if outer is None:
                state.unasked.clear()
            raise
        finally:
            state.current = outer
        if outer is not None:
            return result  # what is reported goes to the outermost call
        reports = outermost.reports
        if (reports or state.unasked) and state.waiting is None and not settle(reports):
            return self._call_again(A, arguments, info, on_failure)
        # true, or not to be seen yet
        worst = combine([report._status for report in reports]) if reports else None
        if state.unasked or (reports and failed(worst) is not False):
            gathered = summarise(reports, self.name, chosen.name, status=worst)
            result = deliver(gathered, on_failure, result)
        return _release(A, arguments, result) if A.is_neutral else result

    def run_unsettled(self, A: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[Test]] | None:
        """The result of a call on a device and the tests of it that are put off until its end,
        which nobody has asked; None if it is known to have failed."""
        state.call, scope = None, Scope([])
        state.current = scope
        try:
            result = self._call(A, arguments)
            unread = [test for _, test in unread_statuses(scope.reports)]
            if any(failed(report._status) for report in scope.reports):
                return None
            return result, [*unread, *state.unasked]
        finally:
            state.current, state.unasked = None, []

    def find(self, A: Any, arguments: tuple[Any, ...] = ()) -> Rule:
        """The rule that would be taken for this operator and these other arguments;
        `rule.is_base`: whether it is the base case."""
        if signatures.is_compiling is not None and signatures.is_compiling():
            s, found = None, self._resolve_compiling(A)
        else:
            s = A._signature
            if s is None:
                s = signature(A)
            found = self._cache.get(s) or self._resolve(s)
        chosen = found.sole or decide(A, found, arguments)
        if not chosen.is_base or not self.rewrites:
            return chosen
        # where torch compiles, which would compile again whenever the table grows, it is not asked
        if s is not None:
            known = _simplify._cache.get(s) or _simplify._resolve(s)
            if known.sole is _simplify.base_rule:
                return chosen
        return self._rewriting(A) or chosen

    def using(self, found: Rule, A: Any, *arguments: Any) -> Any:
        """A call whose rule has been found: `f.using(f.find(A), A, ...)` is `f(A, ...)`, but the
        guards are asked once."""
        is_named = self._method_at is not None and arguments[self._method_at] is not None
        return (self._call_by_method if is_named else self._run)(found, A, arguments)

    def _rewriting(self, A: Any) -> Rule | None:
        """The rule that asks this function again of A as `simplify` writes it; None where
        `simplify` has no rule for A."""
        if self.rewrites is not True and self.rewrites.find(A).rewritten_by is None:  # type: ignore[union-attr]
            return None
        chosen = _simplify.find(A)
        if chosen.is_base:
            return None
        rewriting = self._rewritings.get(chosen.number)
        if rewriting is None:

            def ask_again(A: Any, *arguments: Any) -> Any:
                return self._call(chosen.implementation(A), arguments)

            rewriting = Rule(
                self.name, ask_again, chosen.pattern, name=chosen.name, direct=True, hereditary=True
            )
            rewriting.identity, rewriting.rewritten_by = chosen.identity, chosen
            self._rewritings[chosen.number] = rewriting
        return rewriting

    def _resolve_compiling(self, A: Any) -> Resolution:
        numbers, rivals = _resolve_at_compile_time(self._number, describe(A))
        order = tuple([self.base_rule if i < 0 else self._parts[i] for i in numbers])
        return Resolution(None, order, rivals)

    def _call_for_info(
        self, chosen: Rule, A: Any, arguments: tuple[Any, ...], info: bool, on_failure: str
    ) -> Any:
        """A call whose caller, be it a user or a rule, deals with failures: nothing is passed on
        to a call around it."""
        if on_failure not in ON_FAILURE:
            raise ValueError(
                f"{self.name}: on_failure is {on_failure!r}; it must be one of "
                f"{', '.join(map(repr, ON_FAILURE))}."
            )
        outer = state.current
        result, gathered = self._call_and_gather(chosen, A, arguments)
        if gathered is None:
            return self._call_again(A, arguments, info, on_failure)
        if outer is not None:
            overlook([gathered._status])
        if not info or on_failure == "raise":
            result = deliver(gathered, on_failure, result)
        elif state.waiting is not None:
            tell_later(gathered, "ignore")
        if outer is None and A.is_neutral:
            result = _release(A, arguments, result)
        return (result, gathered) if info else result

    def _call_again(self, A: Any, arguments: tuple[Any, ...], info: bool, on_failure: str) -> Any:
        """The same call on a device, with looks at values where they help: the first run, which
        looks at none, has failed."""
        split, state.split, state.is_careful = state.split, None, True
        try:
            return self._call(A, arguments, info, on_failure)
        finally:
            state.split, state.is_careful = split, False

    def _call_and_gather(self, chosen: Rule, A: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """The result of a rule or the base case, and one Info of all that was reported on the
        way; None if it is the outermost call, and is to be run again."""
        outer, display = state.current, state.display
        state.current = current = Scope([], is_detailed=True)
        title = ""
        if display is not None:
            rule = "" if chosen.is_base else f" ({chosen.name})"
            title = f"{self.name} {'x'.join(map(str, A.shape))}{rule}"
            depth = display.enter(title)
        try:
            result, times = self._perform(chosen, A, arguments, title)
        except BaseException:
            if outer is None:
                state.unasked.clear()
            raise
        finally:
            state.current = outer
            if display is not None:
                display.leave(depth)
        if outer is None and state.waiting is None and not settle(current.reports):
            return None, None
        one_column = self.one_column is not None and self.one_column(*arguments)
        return result, summarise(current.reports, self.name, chosen.name, one_column, times)

    def _perform(
        self, chosen: Rule, A: Any, arguments: tuple[Any, ...], title: str = ""
    ) -> tuple[Any, dict[str, float] | None]:
        """The result of a rule or the base case, and its seconds by part if a clock runs; `title`:
        what the display calls it, if there is one."""
        clock = running() if CLOCKS else None
        begun = None if clock is None else clock.begin(self, chosen, A, arguments)
        mark, how = 0.0 if clock is None else clock.read()[OTHER], chosen.name
        try:
            result = chosen.implementation(A, *arguments)
            while type(result) is Choice:
                how = result.method or how
                if clock is not None:  # until now it was chosen
                    clock.regard_as_dispatch(mark)
                if title:
                    state.display.rename(f"{title} by {result}")
                result = result.run()
        except BaseException:
            if clock is not None:
                clock.abandon(begun)
            raise
        return result, None if clock is None else clock.end(begun, how, result)

    # ------------------------------------------------------------------ rules

    def add(self, rule: Rule) -> None:
        """Add a rule; one of the same name and pattern is replaced (a notebook's cell runs
        twice)."""
        check_parameters(self.name, self.parameters, rule.implementation)
        with _registering:
            known = [(old.name, old.pattern) for old in self.rules]
            self.rules = [*self.rules, rule]
            if (rule.name, rule.pattern) in known:
                at = known.index((rule.name, rule.pattern))
                rule.number = self.rules[at].number
                self.rules[at] = self.rules.pop()
            parts = [part for each in self.rules for part in each.alternatives()]
            # A thread that is resolving meanwhile keeps the old dictionaries, so nothing stale
            # enters the new ones.
            self._parts, self._cache = parts, {}
            signatures.rules_added += 1

    def _resolve(self, s: Signature) -> Resolution:
        cache, index = self._cache, self._index
        # made when it is first needed after rules were added, since importing adds hundreds
        if index.rules is not self._parts:
            index = self._index = RuleIndex(self._parts, self.base_rule)
        found = index.resolve(s)
        if len(cache) >= MOST_STRUCTURES:
            cache.clear()
        cache[s] = found
        return found

    # ------------------------------------------------------------------ the rest

    def explain(self, *arguments: Any, **keywords: Any) -> Any:
        """The same as `explain(function, ...)`."""
        from ..explain import explain

        return explain(self, *arguments, **keywords)

    def __reduce__(self) -> str:
        return self.__qualname__  # by reference, as Python's own functions

    def __repr__(self) -> str:
        return f"<function {self.name} of linear operators, {len(self.rules)} rules>"


_numbers = itertools.count()
_functions: weakref.WeakValueDictionary[int, Function] = weakref.WeakValueDictionary()
_registering = threading.Lock()


def _may_be_watched() -> bool:
    """Whether a call computes now, and nothing shows it yet."""
    is_compiled = signatures.is_compiling is not None and signatures.is_compiling()
    return not (is_compiled or planning()) and state.display is None


def _resolve_at_compile_time(number: int, description: tuple[Any, ...]) -> tuple[Any, ...]:
    f = _functions[number]
    found = f._resolve(from_description(description))
    numbers = tuple(-1 if r.is_base else f._parts.index(r) for r in found.order)
    return (numbers[:1], ((),)) if found.sole else (numbers, found.rivals)


def function_named(name: str) -> Function:
    """The function of this name: colinear's own if it has one, otherwise the newest."""
    ours = __name__.partition(".")[0] + "."
    named = [(number, f) for number, f in _functions.items() if f.name == name]
    found = sorted(named, key=lambda each: (each[1].__module__.startswith(ours), each[0]))
    if not found:
        close = difflib.get_close_matches(name, sorted({f.name for f in _functions.values()}))
        raise ValueError(
            f"there is no function {name!r} of operators."
            + (f" Did you mean {' or '.join(close)}?" if close else "")
        )
    return found[-1][1]


# --------------------------------------------------------------------------------------------------

_converter: Callable[[Any], Any]
_simplify: Function
_release: Callable[[Any, tuple[Any, ...], Any], Any]
_elsewhere: Callable[..., Any]


def set_operators(
    as_operator: Callable[[Any], Any],
    simplify: Function,
    release: Callable[[Any, tuple[Any, ...], Any], Any],
    elsewhere: Callable[..., Any],
) -> None:
    """Say how an array becomes an operator, so that every function takes arrays too; which function
    writes an operator in a family that knows more; how the result of an operator that holds no
    floats is freed of the framework in which it was computed; and how a call is computed elsewhere
    than by its framework's operations, one by one."""
    global _converter, _simplify, _release, _elsewhere
    _converter, _simplify, _release, _elsewhere = as_operator, simplify, release, elsewhere
