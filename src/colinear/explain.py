"""`explain`: what a function would do with an operator, as a tree, without doing the work.

While it plans, every call of a function goes to the `Planner`. Rules run as always, since they only
split the problem; of a `Choice` to do work, which a call would run, it takes what is said of it,
and something of the shape of the result.
"""

from __future__ import annotations

import html
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .backends import mesh_module
from .dispatch import Choice, Cost, Function, Rule, functions, signature
from .dispatch.calls import why_whole
from .dispatch.resolution import guard_name
from .info import Scope, draw, state
from .operators.printing import write
from .plotting import plot_costs
from .rates import Rates, memory_in_words, rates_of

__all__ = ["Cost", "Plan", "explain"]

Displaced = tuple[Rule, str] | None
# Of a rule that does work and does not say how much: the products and calls that take as long, as
# measured; where it runs an algorithm, and where it computes a formula.
DIRECT_WORK = 40.0, 30.0
FORMULA_WORK = 10.0, 5.0
# methods that take a matrix whole
FACTORISATIONS = frozenset({"Cholesky", "LU", "LDL", "QR", "Eigh", "Eig", "SVD"})
WIDEST_EXPRESSION = 60  # characters of an operator in a line of the plan


@dataclass(frozen=True)
class Plan:
    """What a function does with an operator.

    Attributes
    ----------
    function : str
    expression : str
        The operator.
    rule : str
        The name of the rule, or of the method where no rule splits the problem.
    identity : str
        The identity that the rule uses, or why the method was chosen.
    cost : Cost
        Of the whole, parts included; its `seconds` are a forecast for this machine.
    children : tuple of Plan
        The calls that the rule makes.
    rejected : tuple of (str, str)
        The other rules that match, and why they were not taken.
    figures : str
        Where the rates come from by which times are forecast; empty in the parts.
    """

    function: str
    expression: str
    rule: str
    identity: str
    cost: Cost
    children: tuple[Plan, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    figures: str = ""

    @property
    def rules(self) -> list[str]:
        """The names of all rules and methods in the tree, each before its parts."""
        return [plan.rule for plan in self.walk()]

    def walk(self) -> Iterator[Plan]:
        """This plan and all below it, each before its parts."""
        waiting = [self]
        while waiting:
            plan = waiting.pop()
            yield plan
            waiting.extend(reversed(plan.children))

    def __str__(self) -> str:
        tree = draw(self, _line, lambda plan: plan.children)
        return f"{tree}\n{self.figures}" if self.figures else tree

    __repr__ = __str__

    def plot(self, axes: Any = None) -> Any:
        """Draw the forecast of each line as a bar: light for the whole, dark for what is done in the
        line itself, with matplotlib.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib Axes

        Examples
        --------
        >>> import colinear as co, numpy as np
        >>> axes = co.explain(co.inv, co.BlockDiag(np.eye(2), co.Diagonal([1.0, 2.0]))).plot()
        >>> [label.get_text().strip() for label in axes.get_yticklabels()]
        ['inv: inv_block_diagonal', 'inv: LU', 'inv: inv_diagonal']
        """
        deep, labels, whole, own = [(self, 0)], [], [], []
        while deep:
            plan, depth = deep.pop()
            labels.append("   " * depth + f"{plan.function}: {plan.rule}")
            whole.append(plan.cost.seconds)
            own.append(max(0.0, whole[-1] - sum(child.cost.seconds for child in plan.children)))
            deep.extend((child, depth + 1) for child in reversed(plan.children))
        return plot_costs("Plan.plot", labels, {"with its parts": whole, "alone": own}, axes)

    def _repr_html_(self) -> str:
        figures = f'<div style="opacity: 0.6">{html.escape(self.figures)}</div>'
        return (
            '<div style="font-family: monospace; line-height: 1.5">'
            f"{_html(self)}{figures if self.figures else ''}</div>"
        )


def explain(function: Function | str, /, *arguments: Any, **keywords: Any) -> Plan:
    """What `function(*arguments, **keywords)` would do, as a tree of rules, methods, identities and
    costs.

    The function may be named: `explain("solve", A)`. Arguments that do not change the plan, such as
    the right side of `solve`, may be left out.

    Examples
    --------
    >>> import colinear as co
    >>> plan = co.explain(co.inv, co.Kronecker([[2.0, 1.0], [0.0, 3.0]], co.Diagonal([1.0, 2.0])))
    >>> plan.rules
    ['inv_kronecker', 'LU', 'inv_diagonal']
    >>> print(plan.children[1])
    inv Diagonal(2): inv_diagonal  diag(d)^-1 = diag(1 / d)  [2 flop, 16 B, 20 us]
    """
    if isinstance(function, str):
        function = functions.function_named(function)
    elif not isinstance(function, Function):
        raise TypeError(
            f"explain: {function!r} is no function of operators; give one of colinear's, or its "
            "name: explain('solve', A)."
        )
    keywords |= _examples(function, arguments, keywords)
    return plan_of(lambda: function(*arguments, **keywords))


def plan_of(call: Callable[[], Any], compares: bool = True) -> Plan:
    """The plan of a call of a function, which is not run. `compares`: whether the rules that it does
    not take are planned too, for their costs."""
    outer, planner = state.current, Planner(compares)
    state.current, state.call = Scope([], planner=planner), None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            call()
    finally:
        state.current = outer
    figures = planner.figures
    if _is_on_mesh(planner.first):
        # outside the core, and loaded only for operators on meshes
        communication = importlib.import_module("colinear.distributed.communication")
        figures += "\n" + communication.describe(planner.first, planner.gathered, planner.methods)
    return replace(planner.plans[0], figures=figures)


def _examples(f: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Examples of the arguments that were left out."""
    given = f.__signature__.bind_partial(*arguments, **keywords).arguments  # type: ignore[attr-defined]
    missing = [name for name in f.examples if name not in given]
    if not missing or f.parameters[0] not in given:
        return {}
    A = functions._converter(given[f.parameters[0]])
    return {name: f.examples[name](A) for name in missing}


class Planner:
    """Takes the calls of functions while `explain` is planning: `plans` are those made so far at
    the present level."""

    def __init__(self, compares: bool = True) -> None:
        self.plans: list[Plan] = []
        self.has_begun = False
        self.figures = ""  # where the rates come from
        self.first: Any = None  # the operator of the call that is explained
        self.gathered: dict[str, float] = {}  # bytes on each device of a mesh, by method
        self.methods: dict[str, Any] = {}  # given ones, by the name of what runs on a mesh
        # whether rules that were not taken are planned too, for their costs
        self.compares = compares

    def call(
        self,
        f: Function,
        chosen: Rule,
        A: Any,
        arguments: tuple[Any, ...],
        displaced: Displaced = None,
    ) -> Any:
        """Plan a call, and return its result or a stand-in for it.

        `displaced`: a rule that the method does not allow, and why.
        """
        if not self.has_begun:
            self.first = A
        siblings, self.plans, self.has_begun = self.plans, [], True
        rates = rates_of(A)
        self.figures = "; ".join(filter(None, (rates.origin, memory_in_words(A))))
        try:
            name, identity = chosen.name, chosen.identity
            own = None if chosen.cost is None else chosen.cost(A)
            if chosen.like is not None:
                result = chosen.like(A, **{name: arguments[i] for name, i in chosen.like_arguments})
            else:
                result = chosen.implementation(A, *arguments)
                method = f.method_among(arguments)
                if chosen.is_base and type(result) is not Choice and method is not None:
                    name = type(method).__name__
            while type(result) is Choice:
                name, identity = result.method or name, _value(result.why) or identity
                own = _value(result.cost) if own is None else own
                result = result.run() if result.like is None else result.like()
            children = tuple(self.plans)
        finally:
            self.plans = siblings
        if own is None:
            product = timed(Cost(float(A.flops), float(A.nbytes)), rates)
            if chosen.direct or chosen.like is not None:
                products, calls = DIRECT_WORK if chosen.direct else FORMULA_WORK
                seconds = products * product.seconds + calls * rates.call
                product = replace(product, seconds=seconds)
            own = sum((child.cost for child in children), product)
        if _is_on_mesh(A):
            self.methods.setdefault(name, f.method_among(arguments))
            if name in FACTORISATIONS:
                size = float(math.prod(A.shape) * A.dtype.itemsize)
                self.gathered[name] = self.gathered.get(name, 0.0) + size
        own = timed(Cost.of(own), rates)
        own = replace(own, seconds=own.seconds + rates.call)
        rejected = tuple(_rejected(f, A, arguments, chosen, displaced)) if self.compares else ()
        expression = expression_of(A)
        siblings.append(Plan(f.name, expression, name, identity, own, children, rejected))
        return result


def _is_on_mesh(A: Any) -> bool:
    """Whether an operator lies on several devices."""
    context = getattr(A, "_context", None)
    return context is not None and mesh_module(context.device) is not None


def timed(cost: Cost, rates: Rates) -> Cost:
    """The cost with seconds: of flops of which no more is said, those of products with vectors."""
    if not math.isnan(cost.seconds):
        return cost
    return replace(cost, seconds=cost.flops / rates.product)


def _cost_of(f: Function, rule: Rule, A: Any, arguments: tuple[Any, ...]) -> Cost | None:
    """What a rule that applies but was not taken would cost; None if it cannot be told without
    doing its work."""
    if rule.cost is not None:
        return timed(Cost.of(rule.cost(A)), rates_of(A))
    if rule.direct:
        return None
    outer, planner = state.current, Planner(compares=False)
    state.current = Scope([], planner=planner)
    try:
        planner.call(f, rule, A, arguments)
    except Exception:  # it has not been tried on this operator, since another one was taken
        return None
    finally:
        state.current = outer
    return planner.plans[0].cost


def _value(x: Any) -> Any:
    """What a Choice says at once or when it is asked."""
    return x() if callable(x) else x


def _rejected(
    f: Function, A: Any, arguments: tuple[Any, ...], chosen: Rule, displaced: Displaced
) -> Iterator[tuple[str, str]]:
    """The names of the other rules that match A, and why each was not taken."""
    found, method = f._resolve(signature(A)), f.method_among(arguments)
    seen = {chosen.source}
    if displaced is not None:
        chosen, reason = displaced  # which the others gave way to
        yield chosen.name, reason
        seen.add(chosen.source)
    # it stands for the base case
    at = found.order.index(chosen) if chosen in found.order else len(found.order) - 1
    for i, other in enumerate(found.order):
        if other.is_base or other.source in seen:
            continue
        seen.add(other.source)
        if method is not None and (why := why_whole(other, method, A)):
            yield other.name, why
        elif not other.holds(A, arguments):
            why = f"its guard {guard_name(other)} does not hold"
            if method is not None and "method" in dict(other.guard_arguments):
                any_method = tuple(None if given is method else given for given in arguments)
                if other.holds(A, any_method):
                    why = f"{type(method).__name__} was asked for"
            yield other.name, why
        elif (
            (i in found.rivals[at] or at in found.rivals[i])
            and other.cost is not None
            and chosen.cost is not None
        ):
            rates = rates_of(A)
            costs = [timed(Cost.of(cost(A)), rates) for cost in (other.cost, chosen.cost)]
            yield other.name, f"costs {costs[0]}, not {costs[1]}"
        else:
            cost = _cost_of(f, other, A, arguments)
            told = "" if cost is None else f", costs {cost}"
            yield (
                other.name,
                f"less specific{told} ({other.pattern!r} against {chosen.pattern!r})",
            )


# --------------------------------------------------------------------------------------------------


def expression_of(A: Any) -> str:
    """The operator as an expression, in one line."""
    return write(A) if hasattr(A, "_expression") else " ".join(repr(A).split())


def shorten(expression: str) -> str:
    """The beginning of a long expression."""
    if len(expression) <= WIDEST_EXPRESSION:
        return expression
    return expression[: WIDEST_EXPRESSION - 1] + "…"


def _line(plan: Plan) -> str:
    identity = f"  {plan.identity}" if plan.identity else ""
    rejected = "; ".join(
        f"not {name}: {reason.partition(' (')[0]}" for name, reason in plan.rejected
    )
    return f"{plan.function} {shorten(plan.expression)}: {plan.rule}{identity}  [{plan.cost}]" + (
        f"  ({rejected})" if rejected else ""
    )


def _html(plan: Plan) -> str:
    e = html.escape
    summary = (
        f"{e(plan.function)} {e(shorten(plan.expression))}: <b>{e(plan.rule)}</b> "
        f"<i>{e(plan.identity)}</i> "
        f'<span style="opacity: 0.6">[{e(str(plan.cost))}]</span>'
    )
    notes = "".join(
        f'<div style="margin-left: 2em; opacity: 0.6">not {e(n)}: {e(r)}</div>'
        for n, r in plan.rejected
    )
    if not plan.children:
        return f'<div style="margin-left: 1em">{summary}</div>{notes}'
    inside = "".join(
        f'<div style="margin-left: 1.5em">{_html(child)}</div>' for child in plan.children
    )
    return f"<details open><summary>{summary}</summary>{notes}{inside}</details>"
