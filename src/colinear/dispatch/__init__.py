"""Functions that anyone can extend: rules for patterns of operators, and how a call finds its rule.

    inv = function("inv", base=factorise)         a new function, for all operators

    @rule(inv, Sum[LowRank, Diagonal])            a new rule; the first line of its docstring is its identity
    def woodbury(A, method): ...

A call looks up the operator's signature in one dictionary, which gives the rules that match, the
most specific first; the first whose guard holds is taken, and the base case if there is none. Where
only the base case is left, the operator may be written in a family that knows more (`simplify`, in
operators/rewrites.py), and the function is asked again.

More specific means subsumed (`subsumption.py`); of two rules for the same pattern the guarded one
comes first, and of two guarded ones the one written first. Where neither of two rules is more
specific, the cheaper wins if both say what they cost; otherwise the call is ambiguous and fails,
which `check_rules` finds beforehand.

What is decided is said before it is done: a rule or a base case may return a `Choice`, which a call
runs and `explain` prints.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .calls import (
    algorithm_of,
    check_part,
    compile_call,
    deferred,
    for_own_arrays,
    has_needs,
    is_own,
    set_method_names,
    shared_arguments,
    why_whole,
)
from .functions import (
    Function,
    Implementation,
    _functions,
    _resolve_at_compile_time,
    set_operators,
)
from .patterns import Pattern, arrange, as_pattern
from .resolution import (
    AmbiguousPair,
    Choice,
    Cost,
    Rule,
    ambiguous_pairs,
    perform,
)
from .signatures import signature
from .subsumption import overlaps, subsumes

__all__ = [
    "AmbiguousPair",
    "Choice",
    "Cost",
    "Function",
    "Pattern",
    "Rule",
    "algorithm_of",
    "arrange",
    "as_pattern",
    "check_part",
    "check_rules",
    "deferred",
    "function",
    "has_needs",
    "overlaps",
    "perform",
    "rule",
    "set_method_names",
    "set_operators",
    "signature",
    "subsumes",
    "why_whole",
]


_resolve_at_compile_time._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see signatures.py


def function(
    name: str,
    base: Callable[..., Any],
    *,
    operand: int = 0,
    examples: dict[str, Callable[[Any], Any]] | None = None,
    forwards: bool = False,
    suits: Callable[[Any, Any], bool] | None = None,
    rewrites: bool | Function = True,
    one_column: Callable[..., bool] | None = None,
    by_method: Callable[..., Any] | None = None,
) -> Function:
    """A new function of linear operators, to which `rule` adds rules.

    Parameters
    ----------
    name : str
    base : callable
        `base(A, ..., method=None)`: the base case, for operators that no rule matches. Its
        parameters are those of the function and of every rule; its docstring is the function's. It
        returns the result, or the `Choice` of how to find it, so that `explain` can say which
        method that is, what it costs and why.
    operand : int
        Where the operator stands in a call of the function; rules and the base case always take it
        first.
    examples : dict, optional
        For arguments that `explain` may leave out: `{"b": example_right_side}` gives `b =
        example_right_side(A)`.
    forwards : bool
        Whether the base case hands the method to other functions of A, instead of using it.
    suits : callable, optional
        `suits(A, method)`: whether A is known to have what the method needs for this function; by
        default the properties in `method.needs`.
    rewrites : bool or Function
        Whether an operator for which only the base case is left is first written in a family that
        knows more, if `simplify` has a rule for it. False where the base case multiplies only, or
        asks other functions; one of these functions where it rewrites if and only if that one does.
    one_column : callable, optional
        `one_column(...)`, with the arguments but the operator: whether the answer is one column, so
        that the figures of its Info are numbers.
    by_method : callable, optional
        `by_method(algorithm, A, ...)`: the base case where the named method is one from outside,
        with an algorithm of its own for this function; by default the algorithm is called with the
        function's arguments, and what it returns is the answer.

    Examples
    --------
    >>> bandwidth = function("bandwidth", base=lambda A: A.shape[-1] - 1)
    >>> bandwidth.name
    'bandwidth'
    """
    parameters = list(inspect.signature(base).parameters.values())
    kinds = {p.kind for p in parameters}
    if not parameters or kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise TypeError(
            f"{name}: the base case must take the operator first, and name every argument (no "
            "*args, no **kwargs)."
        )
    if reserved := {p.name for p in parameters} & {"info", "on_failure"}:
        raise TypeError(
            f"{name}: the base case has an argument {reserved.pop()}, which every function has "
            "already."
        )
    # The parameters of a call: the operator moved to its place, and the two that every function
    # has.
    public = parameters[1:]
    public.insert(operand, parameters[0])
    keyword = inspect.Parameter.KEYWORD_ONLY
    public += [
        inspect.Parameter(p, keyword, default=d, annotation=type(d).__name__)
        for p, d in (("info", False), ("on_failure", "warn"))
    ]
    call = compile_call(name, parameters, public)
    f: Function = type(name, (Function,), {"__call__": call})(name, base)
    f.__doc__ = base.__doc__  # not the class's: `help` takes that for one of all instances
    f.__signature__ = inspect.Signature(public)  # type: ignore[attr-defined]
    f.parameters, f.operand = tuple(p.name for p in parameters), operand
    f._method_at = f.parameters.index("method") - 1 if "method" in f.parameters else None
    f.examples, f.one_column, f.by_method = examples or {}, one_column, by_method
    f.forwards, f.suits, f.rewrites = forwards, suits or has_needs, rewrites
    f.lends = is_own(base)
    return f


def rule(
    function: Function,
    pattern: Any,
    when: Callable[..., bool] | None = None,
    cost: Callable[[Any], Any] | None = None,
    name: str | None = None,
    like: Callable[..., Any] | None = None,
    direct: bool = False,
    estimates: bool = False,
    by_eigenvectors: bool = False,
    hereditary: bool = False,
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of `function` for operators that match `pattern`.

    Parameters
    ----------
    function : Function
    pattern
        A class, `Cls[...]`, an annotation, or a union of these.
    when : callable, optional
        `when(A)`: a guard on what patterns cannot see. It may take more arguments of the function,
        by their names and with defaults: `when(A, b=None, method=None)`.
    cost : callable, optional
        `cost(A)`: a `Cost` or a number of flops. Decides between rules of which none is more
        specific.
    name : str, optional
        The rule's name; its function's, if not given.
    like : callable, optional
        `like(A)`, with more arguments as a guard may have them: something of the type and shape of
        the result that costs nothing, for a rule that computes instead of asking functions of
        parts. `explain` takes it instead of running the rule.
    direct : bool
        Whether it factors one operator instead of splitting the problem: then it gives way where
        the user names an iterative method.
    estimates : bool
        Whether it carries the standard errors of its parts on to the whole: all other rules give
        way where the user names a stochastic method.
    by_eigenvectors : bool
        Whether it finds an inverse by eigenvectors, which have no derivative where eigenvalues
        repeat and a useless one where they nearly do: the inverse is then differentiated by A x =
        b.
    hereditary : bool
        Whether its parts have every property that the operator has, as the blocks along a diagonal
        have, or the operator itself written in another way: then a method that is for the whole is
        for the parts, also where that is known by the word of the user alone.

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
        wrap = function.implicit if by_eigenvectors else None
        found = implementation if wrap is None else wrap(implementation)
        found = found if is_own(implementation) else for_own_arrays(found)
        new = Rule(function.name, found, as_pattern(pattern), when, cost, name or "")
        new.like, new.direct, new.estimates, new.hereditary = like, direct, estimates, hereditary
        new.guard_arguments, new.like_arguments = (
            shared_arguments(f, function.parameters) for f in (when, like)
        )
        function.add(new)
        return implementation

    return register


# --------------------------------------------------------------------------------------------------


def check_rules(function: Function | None = None) -> list[AmbiguousPair]:
    """All pairs of rules (of one function, or of all) that overlap with neither more specific, and
    no means to decide.

    A pair is decided if both rules have a cost, or if other rules, without guards, cover all that
    matches both.

    Examples
    --------
    >>> import colinear as co
    >>> co.check_rules(co.inv)
    []
    """
    return [
        pair
        for f in (list(_functions.values()) if function is None else [function])
        for pair in ambiguous_pairs(f.rules)
    ]
