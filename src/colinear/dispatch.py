"""Functions that anyone can extend: rules for patterns of operators, and how a call finds its rule.

    inv = function("inv", base=factorise)         a new function, for all operators

    @rule(inv, Sum[LowRank, Diagonal])            a new rule; the first line of its docstring is its identity
    def woodbury(A, method): ...

A call looks up the operator's signature in one dictionary, which gives the rules that match, the most specific first; the first
whose guard holds is taken, and the base case if there is none. More specific means subsumed (`subsumption.py`); of two rules for
the same pattern the guarded one comes first, and of two guarded ones the one written first. Where neither of two rules is more
specific, the cheaper wins if both say what they cost; otherwise the call is ambiguous and fails, which `check_rules` finds
beforehand.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import signatures
from .info import ON_FAILURE, Detailed, Info, MethodError, combine, failed, gather, planning, settle, state
from .patterns import Pattern, arrange, as_pattern
from .resolution import AmbiguousPair, Cost, Resolution, Rule, ambiguous_pairs, decide, resolve
from .rule_index import RuleIndex
from .signatures import Signature, describe, from_description, signature
from .subsumption import overlaps, subsumes

__all__ = [
    "AmbiguousPair",
    "Cost",
    "Function",
    "Pattern",
    "Rule",
    "arrange",
    "as_pattern",
    "check_rules",
    "function",
    "overlaps",
    "rule",
    "set_converter",
    "set_method_names",
    "signature",
    "subsumes",
]

MOST_STRUCTURES = 10_000  # that a function remembers: then it forgets them all

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


# ---------------------------------------------------------------------------------------------------- functions


class Function:
    """A function of linear operators that is open to new rules. Made by `function`; called like any Python function.

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
    stand_in: Callable[..., Any] | None
    choose: Callable[..., Any] | None
    examples: dict[str, Callable[[Any], Any]]
    one_column: Callable[..., bool] | None
    parameters: tuple[str, ...]  # of rules, the operator first
    operand: int  # where the operator stands in a call

    def __init__(self, name: str, base: Callable[..., Any]):
        self.name, self.base, self.rules = name, base, []
        self.__name__ = self.__qualname__ = name
        self.__module__ = getattr(base, "__module__", __name__)
        self.base_rule = Rule(name, _positional(base), Pattern(None), is_base=True)
        self._parts: list[Rule] = []  # the rules, those for unions taken apart
        self._index = RuleIndex(self._parts)
        self._cache: dict[Signature, Resolution] = {}
        self._precedence: dict[Any, bool] = {}
        self._number = next(_numbers)
        _functions[self._number] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # each function's own class has one with its own parameters

    def _call(self, A: Any, arguments: tuple[Any, ...], method: Any, info: bool, on_failure: str) -> Any:
        """A call whose arguments have been sorted into the operator and the rest, as rules take them."""
        if method is not None and not getattr(type(method), "_is_method", False):
            raise _not_a_method(self.name, method)
        if not hasattr(type(A), "_is_root"):
            A = _convert(self.name, A)
        chosen = self.find(A)
        if method is not None and _runs_whole(chosen, method, A):
            chosen = self.base_rule  # the user wants A itself iterated with
        outer = state.current
        if info or on_failure != "warn":
            return self._call_for_info(chosen, A, arguments, method, info, on_failure)
        if type(outer) is list:
            return chosen.implementation(A, *arguments)  # what is reported goes to the outermost call
        if outer is not None:
            return self._call_in_detail(outer, chosen, A, arguments, method)
        reports: list[Info] = []
        state.current = reports
        try:
            result = chosen.implementation(A, *arguments)
        finally:
            state.current = None
        if reports and failed(combine([report._status for report in reports])) is not False:  # true, or not to be seen yet
            settle(gather(reports, self.name, chosen.name), on_failure)
        return result

    def find(self, A: Any) -> Rule:
        """The rule that would be taken for this operator; `rule.is_base` says whether it is the base case."""
        if signatures.is_compiling is not None and signatures.is_compiling():
            return self._find_compiling(A)
        s = A._signature
        if s is None:
            s = signature(A)
        found = self._cache.get(s) or self._resolve(s)
        return found.sole or decide(A, found)

    def _too_many(self, most: int, excess: tuple[Any, ...]) -> TypeError:
        return TypeError(f"{self.name}() takes {most} positional arguments, {most + len(excess)} were given")

    def _not_an_argument(self, unknown: dict[str, Any]) -> TypeError:
        name, value = next(iter(unknown.items()))
        text = f"{self.name}() got an unexpected keyword argument {name!r}."
        owners = _method_options(name) if "method" in self.parameters else ()
        if not owners:
            return TypeError(text)
        others = f" (so have {', '.join(owners[1:4])})" if len(owners) > 1 else ""
        shown = repr(value) if isinstance(value, (int, float, str)) else "..."
        return TypeError(f"{text} It is an option of methods: write method={owners[0]}({name}={shown}){others}.")

    def _find_compiling(self, A: Any) -> Rule:
        numbers, rivals = _resolve_at_compile_time(self._number, describe(A))
        order = tuple([self.base_rule if i < 0 else self._parts[i] for i in numbers])
        return decide(A, Resolution(None, order, rivals))

    def _call_for_info(self, chosen: Rule, A: Any, arguments: tuple[Any, ...], method: Any, info: bool, on_failure: str) -> Any:
        """A call whose caller, be it a user or a rule, deals with failures: nothing is passed on to a call around it."""
        if on_failure not in ON_FAILURE:
            raise ValueError(f"{self.name}: on_failure is {on_failure!r}; it must be one of {', '.join(map(repr, ON_FAILURE))}.")
        outer = state.current
        if planning():
            result = outer.call(self, chosen, A, arguments, method)
            return (result, Info(function=self.name, rule=chosen.name)) if info else result
        result, gathered = self._call_and_gather(chosen, A, arguments)
        if not info or on_failure == "raise":
            settle(gathered, on_failure)
        return (result, gathered) if info else result

    def _call_in_detail(self, outer: Any, chosen: Rule, A: Any, arguments: tuple[Any, ...], method: Any) -> Any:
        """A nested call that the call around it wants to know of: because it makes an Info, or a plan."""
        if not isinstance(outer, Detailed):
            return outer.call(self, chosen, A, arguments, method)
        result, gathered = self._call_and_gather(chosen, A, arguments)
        outer.append(gathered)
        return result

    def _call_and_gather(self, chosen: Rule, A: Any, arguments: tuple[Any, ...]) -> tuple[Any, Info]:
        """The result of a rule or the base case, and one Info of all that was reported on the way."""
        outer = state.current
        state.current = current = Detailed()
        is_timed = signatures.is_compiling is None or not signatures.is_compiling()
        start = time.perf_counter() if is_timed else 0.0
        try:
            result = chosen.implementation(A, *arguments)
        finally:
            state.current = outer
        seconds = time.perf_counter() - start if is_timed else None
        one_column = self.one_column is not None and self.one_column(*arguments)
        return result, gather(current.reports, self.name, chosen.name, one_column, seconds)

    # ------------------------------------------------------------------ rules

    def add(self, rule: Rule) -> None:
        """Add a rule; one of the same name and pattern is replaced (a notebook's cell runs twice)."""
        _check_parameters(self, rule)
        with _registering:
            same = next((old for old in self.rules if old.name == rule.name and old.pattern == rule.pattern), None)
            if same is not None:
                rule.number = same.number
                self.rules = [rule if old is same else old for old in self.rules]
            else:
                self.rules = [*self.rules, rule]
            parts = [part for each in self.rules for part in each.alternatives()]
            # A thread that is resolving meanwhile keeps the old dictionaries, so nothing stale enters the new ones.
            self._parts, self._precedence, self._cache = parts, {}, {}

    def _resolve(self, s: Signature) -> Resolution:
        cache, index = self._cache, self._index
        if index.rules is not self._parts:  # made when it is first needed after rules were added, since importing adds hundreds
            index = self._index = RuleIndex(self._parts)
        found = resolve(index.matching(s), self.base_rule, self._precedence)
        if len(cache) >= MOST_STRUCTURES:
            cache.clear()
        cache[s] = found
        return found

    # ------------------------------------------------------------------ the rest

    def explain(self, *arguments: Any, **keywords: Any) -> Any:
        """The same as `explain(function, ...)`."""
        from .explain import explain

        return explain(self, *arguments, **keywords)

    def __reduce__(self) -> str:
        return self.__qualname__  # by reference, as Python's own functions

    def __repr__(self) -> str:
        return f"<function {self.name} of linear operators, {len(self.rules)} rules>"


_numbers = itertools.count()
_functions: weakref.WeakValueDictionary[int, Function] = weakref.WeakValueDictionary()
_registering = threading.Lock()


def _resolve_at_compile_time(number: int, description: tuple[Any, ...]) -> tuple[Any, ...]:
    f = _functions[number]
    found = f._resolve(from_description(description))
    numbers = tuple(-1 if r.is_base else f._parts.index(r) for r in found.order)
    return (numbers[:1], ((),)) if found.sole else (numbers, found.rivals)


_resolve_at_compile_time._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see signatures.py


def function_named(name: str) -> Function:
    """The function of this name, the newest of several."""
    found = [f for _, f in sorted(_functions.items()) if f.name == name]
    if not found:
        close = difflib.get_close_matches(name, sorted({f.name for f in _functions.values()}))
        raise ValueError(
            f"there is no function {name!r} of operators." + (f" Did you mean {' or '.join(close)}?" if close else "")
        )
    return found[-1]


def function(
    name: str,
    base: Callable[..., Any],
    *,
    operand: int = 0,
    stand_in: Callable[..., Any] | None = None,
    choose: Callable[..., Any] | None = None,
    examples: dict[str, Callable[[Any], Any]] | None = None,
    one_column: Callable[..., bool] | None = None,
) -> Function:
    """A new function of linear operators, to which `rule` adds rules.

    Parameters
    ----------
    name : str
    base : callable
        `base(A, ..., method=None)`: the base case, for operators that no rule matches. Its parameters are those of the function
        and of every rule; its docstring is the function's.
    operand : int
        Where the operator stands in a call of the function; rules and the base case always take it first.
    stand_in : callable, optional
        `stand_in(A, ...)`, with the arguments but the method: something of the right type and shape that costs nothing. It stands
        for the result of the base case while `explain` is planning; without it the base case is run.
    choose : callable, optional
        `choose(A, ..., method) -> (name, cost, reason)`: which method the base case would use, what it costs and why.
    examples : dict, optional
        For arguments that `explain` may leave out: `{"b": example_right_side}` gives `b = example_right_side(A)`.
    one_column : callable, optional
        `one_column(...)`, with the arguments but the operator: whether the answer is one column, so that
        the figures of its Info are numbers.

    Examples
    --------
    >>> bandwidth = function("bandwidth", base=lambda A: A.shape[-1] - 1)
    >>> bandwidth.name
    'bandwidth'
    """
    parameters = list(inspect.signature(base).parameters.values())
    kinds = {p.kind for p in parameters}
    if not parameters or kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise TypeError(f"{name}: the base case must take the operator first, and name every argument (no *args, no **kwargs).")
    if reserved := {p.name for p in parameters} & {"info", "on_failure"}:
        raise TypeError(f"{name}: the base case has an argument {reserved.pop()}, which every function has already.")
    # The parameters of a call: the operator moved to its place, and the two that every function has.
    public = parameters[1:]
    public.insert(operand, parameters[0])
    keyword = inspect.Parameter.KEYWORD_ONLY
    public += [inspect.Parameter(p, keyword, default=d) for p, d in (("info", False), ("on_failure", "warn"))]
    call = _compile_call(name, parameters, public)
    f: Function = type(name, (Function,), {"__call__": call, "__doc__": base.__doc__})(name, base)
    f.__doc__ = base.__doc__
    f.__signature__ = inspect.Signature(public)  # type: ignore[attr-defined]
    f.parameters, f.operand = tuple(p.name for p in parameters), operand
    f.stand_in, f.choose, f.examples, f.one_column = stand_in, choose, examples or {}, one_column
    return f


def _positional(base: Callable[..., Any]) -> Callable[..., Any]:
    """The base case as rules are called, with every argument in its place, also those that it takes by keyword only."""
    parameters = inspect.signature(base).parameters.values()
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if not keywords:
        return base

    @functools.wraps(base)
    def call(*arguments: Any) -> Any:
        split = len(arguments) - len(keywords)
        return base(*arguments[:split], **dict(zip(keywords, arguments[split:])))

    return call


def _compile_call(name: str, parameters: list[inspect.Parameter], public: list[inspect.Parameter]) -> Any:
    """`__call__` with the function's own parameters, written out and compiled once.

    Python then sorts the arguments, and complains of them, as fast and as clearly as for any function.
    """
    positional = [p for p in public if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = [p for p in public if p.kind is inspect.Parameter.KEYWORD_ONLY]
    defaults = {f"_default_{p.name}": p.default for p in public if p.default is not p.empty}

    def written(p: inspect.Parameter) -> str:
        return p.name if p.default is p.empty else f"{p.name}=_default_{p.name}"

    header = ["_self", *map(written, positional), "*_excess", *map(written, keywords), "**_unknown"]
    others = "".join(f"{p.name}, " for p in parameters[1:])
    method = "method" if any(p.name == "method" for p in parameters[1:]) else "None"
    source = (
        f"def __call__({', '.join(header)}):\n"
        f"    if _excess:\n"
        f"        raise _self._too_many({len(positional)}, _excess)\n"
        f"    if _unknown:\n"
        f"        raise _self._not_an_argument(_unknown)\n"
        f"    return _self._call({parameters[0].name}, ({others}), {method}, info, on_failure)\n"
    )
    scope: dict[str, Any] = dict(defaults)
    exec(compile(source, f"<colinear {name}>", "exec"), scope)
    call = scope["__call__"]
    call.__qualname__ = name  # the name in Python's own complaints
    return call


def rule(
    function: Function,
    pattern: Any,
    when: Callable[[Any], bool] | None = None,
    cost: Callable[[Any], Any] | None = None,
    name: str | None = None,
    direct: bool = False,
    estimates: bool = False,
    by_eigenvectors: bool = False,
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of `function` for operators that match `pattern`.

    Parameters
    ----------
    function : Function
    pattern
        A class, `Cls[...]`, an annotation, or a union of these.
    when : callable, optional
        `when(A)`: a guard on what patterns cannot see.
    cost : callable, optional
        `cost(A)`: a `Cost` or a number of flops. Decides between rules of which none is more specific.
    name : str, optional
        The rule's name; its function's, if not given.
    direct : bool
        Whether it factors one operator instead of splitting the problem: then it gives way where the user names an iterative method.
    estimates : bool
        Whether it carries the standard errors of its parts on to the whole: all other rules give way where the user names a
        stochastic method.
    by_eigenvectors : bool
        Whether it finds an inverse by eigenvectors of parts of the operator, which have no derivative where eigenvalues repeat: a solve
        is then differentiated by its equation.

    Examples
    --------
    >>> import colinear as co
    >>> total = co.function("total", base=lambda A: A.to_dense().sum())
    >>> @co.rule(total, co.Diagonal)
    ... def total_diagonal(A):
    ...     "sum(diag(d)) = sum(d)"
    ...     return A.d.sum()
    >>> float(total(co.Diagonal([1.0, 2.0])))
    3.0
    """
    if not isinstance(function, Function):
        raise TypeError(f"rule: {function!r} is not a function made by `function(name, base=...)`.")

    def register(implementation: Implementation) -> Implementation:
        marks = {"direct": direct, "estimates": estimates, "by_eigenvectors": by_eigenvectors}
        function.add(Rule(function.name, implementation, as_pattern(pattern), when, cost, name, **marks))
        return implementation

    return register


def _check_parameters(f: Function, rule: Rule) -> None:
    try:
        inspect.signature(rule.implementation).bind(*f.parameters)
    except TypeError as error:
        wanted = ", ".join(f.parameters)
        raise TypeError(f"{f.name}: a rule is called as rule({wanted}), which {rule.name} does not take: {error}.") from None
    except ValueError:
        pass  # a built-in without a signature


# ---------------------------------------------------------------------------------------------------- ambiguity


def check_rules(function: Function | None = None) -> list[AmbiguousPair]:
    """All pairs of rules (of one function, or of all) that overlap with neither more specific, and no means to decide.

    A pair is decided if both rules have a cost, or if other rules, without guards, cover all that matches both.

    Examples
    --------
    >>> import colinear as co
    >>> co.check_rules(co.inv)
    []
    """
    return [pair for f in (list(_functions.values()) if function is None else [function]) for pair in ambiguous_pairs(f.rules)]


# ---------------------------------------------------------------------------------------------------- what others provide

_converter: Callable[[Any], Any] | None = None
_method_names: Callable[[], Sequence[str]] = tuple
_method_options: Callable[[str], Sequence[str]] = lambda name: ()  # noqa: E731


def set_converter(as_operator: Callable[[Any], Any]) -> None:
    """Say how an array becomes an operator, so that every function takes arrays too."""
    global _converter
    _converter = as_operator


def set_method_names(names: Callable[[], Sequence[str]], options: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
    """Say which methods there are, and which of them have an option of some name, for messages that list them."""
    global _method_names, _method_options
    _method_names, _method_options = names, options


def _convert(name: str, A: Any) -> Any:
    if _converter is None:
        raise TypeError(f"{name}: expected a linear operator, got {type(A).__name__}.")
    return _converter(A)


def _runs_whole(rule: Rule, method: Any, A: Any) -> bool:
    """Whether a method that the user named takes A itself, instead of the parts into which the rule splits it."""
    if rule.direct and method.is_iterative:
        return True
    if not rule.estimates and getattr(method, "is_stochastic", False):
        return True
    uses = getattr(method, "runs_on", None)  # of a method that makes use of the structure itself
    return uses is not None and bool(uses(A))


def _not_a_method(name: str, method: Any) -> MethodError:
    names = list(_method_names())
    given = method.__name__ if isinstance(method, type) else method if isinstance(method, str) else None
    close = next((n for n in names if isinstance(given, str) and n.lower() == given.lower()), None)
    if close is None and isinstance(method, type) and getattr(method, "_is_method", False):
        close = method.__name__
    advice = f" Write {close}()." if close else f" Use one of {', '.join(n + '()' for n in names)}." if names else ""
    what = f"the class {given}" if isinstance(method, type) else repr(method)
    return MethodError(f"{name}: method must be None or a method object such as Auto(), not {what}.{advice}")
