"""`profile`: what the calls of a program took, measured beside what `explain` forecasts, as a tree."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from . import backends
from .clock import ASIDE, DERIVATIVES, PARTS, PRODUCTS, Clock, difference, ticking
from .dispatch import Function
from .dispatch.resolution import time_text
from .explain import Plan, expression_of, plan_of, shorten
from .info import draw
from .plotting import plot_costs

MOST_PLANS = 200  # different calls whose forecast is asked for: a plan takes about a millisecond
UNSEEN = (
    "No call of colinear was seen. A program that jax.jit or torch.compile has compiled before makes "
    "none: profile the function without them, or with the framework's own profiler."
)
TRACED = (
    "What is traced has no times of its own: the compiled program runs later, as a whole, and only its "
    "total can be measured. Profile the function without jax.jit, or use jax.profiler."
)


@dataclass
class Row:
    """A call of a function, or several equal ones after each other.

    Attributes
    ----------
    function, expression, rule : str
        The function, the operator, and the rule or method that was taken.
    seconds : float or None
        Measured, with its parts; None where the call was traced.
    forecast : float or None
        The seconds that `explain` forecasts; None where it makes no such call.
    times : dict
        The seconds by part: "dispatch", "factorisation", "products", "derivatives", "other".
    count : int
        How many equal calls the row stands for; the seconds are of all of them.
    within : str
        "products" or "derivatives" where the call was made to multiply or to differentiate.
    children : list of Row
        The calls that the rule made.
    depth : int
        How many calls it is inside of.
    """

    function: str
    expression: str
    rule: str
    seconds: float | None = None
    forecast: float | None = None
    times: dict[str, float] = field(default_factory=dict)
    count: int = 1
    within: str = ""
    children: list[Row] = field(default_factory=list, repr=False)
    depth: int = 0

    @property
    def label(self) -> str:
        """The function, its operator and its rule, in one line."""
        times = f"{self.count} x " if self.count > 1 else ""
        within = f" (in {self.within})" if self.within else ""
        return f"{times}{self.function} {shorten(self.expression)}: {self.rule}{within}"

    def _is_like(self, other: Row) -> bool:
        """Whether it is the same call again, so that both may be one row."""
        names = ("function", "expression", "rule", "within")
        return all(getattr(self, name) == getattr(other, name) for name in names) and (
            (self.seconds is None) == (other.seconds is None)
        )

    def _add(self, other: Row) -> None:
        """Count another call in."""
        self.count += other.count
        if self.seconds is not None and other.seconds is not None:
            self.seconds += other.seconds
            self.times = {part: self.times[part] + other.times[part] for part in PARTS}
        both = (self.forecast, other.forecast)
        self.forecast = None if None in both else sum(both)  # type: ignore[arg-type]
        if len(self.children) == len(other.children) and all(
            mine._is_like(another) for mine, another in zip(self.children, other.children)
        ):
            for mine, another in zip(self.children, other.children):
                mine._add(another)
        else:
            self.children = merged([*self.children, *other.children])


class Profile:
    """What the calls of colinear in a block took: see `profile`.

    Attributes
    ----------
    rows : list of Row
        All calls, each before the calls that it made; equal ones after each other are one row.
    calls : list of Row
        The outermost of them.
    seconds : float
        The time of the whole block, without what `profile` itself did.
    times : dict
        The same by part; "other" holds what the block did beside colinear too.
    result : object
        What the function returned, if there was one.
    notes : list of str
        What could not be seen.
    """

    def __init__(self) -> None:
        self.calls: list[Row] = []
        self.result: Any = None
        self.notes: list[str] = []
        self.seconds, self.times = 0.0, dict.fromkeys(PARTS, 0.0)
        self.figures = ""  # where the forecasts come from

    def __enter__(self) -> Self:
        self._recorder = _Recorder(self)
        self._block = ticking(self._recorder)
        self._block.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.times = dict(self._recorder.read())
        self._block.__exit__(*failure)
        self.seconds = sum(self.times.values())
        self.calls = merged(self.calls)
        if not self.calls and not self.times[PRODUCTS]:
            self.notes.append(UNSEEN)
        if any(row.seconds is None for row in self.rows):
            self.notes.append(TRACED)

    @property
    def rows(self) -> list[Row]:
        return list(_walk(self.calls))

    def plot(self, axes: Any = None) -> Any:
        """Draw the measured time of each row beside its forecast, with matplotlib; return its axes."""
        rows = self.rows
        labels = ["   " * row.depth + f"{row.function}: {row.rule}" for row in rows]
        bars = {
            "measured": [row.seconds or math.nan for row in rows],
            "forecast": [row.forecast or math.nan for row in rows],
        }
        return plot_costs("Profile.plot", labels, bars, axes)

    def __str__(self) -> str:
        lines = [line for call in self.calls for line in _lines(call)]
        width = max((len(label) for label, _ in lines), default=0)
        text = [f"{'':{width}}  {'measured':>9} {'forecast':>9}"] if lines else []
        for label, row in lines:
            text.append(f"{label:{width}}  {_text(row.seconds):>9} {_text(row.forecast):>9}")
        return "\n".join([*text, self._total(), *self._remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        e = html.escape
        cell = '<td style="text-align: right; padding-left: 1em">'
        rows = "".join(
            f'<tr><td style="text-align: left; padding-left: {1.5 * row.depth}em">{e(row.label)}</td>'
            f"{cell}{_text(row.seconds)}</td>{cell}{_text(row.forecast)}</td></tr>"
            for row in self.rows
        )
        head = f"<tr><th></th>{cell}<b>measured</b></td>{cell}<b>forecast</b></td></tr>"
        rest = "".join(f"<div>{e(line)}</div>" for line in [self._total(), *self._remarks()])
        return f'<div style="font-family: monospace"><table>{head}{rows}</table>{rest}</div>'

    def _total(self) -> str:
        spent = [f"{part} {time_text(self.times[part])}" for part in PARTS if self.times[part]]
        return f"total {time_text(self.seconds)}: {', '.join(spent)}"

    def _remarks(self) -> list[str]:
        return [*self.notes, *([self.figures] if self.figures else [])]


def profile(f: Callable[..., Any] | None = None, /, *arguments: Any, **keywords: Any) -> Profile:
    """Run a function and print what its calls of colinear took, beside what `explain` forecasts.

    Parameters
    ----------
    f : callable, optional
        A function of colinear or of your own. Without it the result is for a block:
        `with profile() as p: ...`, then `print(p)`.
    *arguments, **keywords
        What it is called with: `profile(solve, A, b)`.

    Returns
    -------
    Profile
        With `rows`, `seconds`, `times` by part, `result`, `plot()`; text in a terminal, a table in a
        notebook.

    Notes
    -----
    The calls of the present thread are seen; on a GPU each is waited for. What jax.jit and
    torch.compile have compiled cannot be seen inside; the profile says so.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Kronecker(co.PSD(np.eye(30) + 1), co.Diagonal(np.arange(1.0, 21.0)))
    >>> with co.profile() as p:
    ...     x = co.solve(A, np.ones(600))
    >>> [(row.function, row.rule) for row in p.rows][:2]
    [('solve', 'inverse'), ('inv', 'inv_kronecker')]
    >>> 0 < p.calls[0].seconds <= p.seconds, sorted(p.times)[:2]
    (True, ['derivatives', 'dispatch'])
    """
    found = Profile()
    if f is None:
        if arguments or keywords:
            raise TypeError("profile: there are arguments and no function: write profile(f, ...).")
        return found
    if not callable(f):
        raise TypeError(
            f"profile: {f!r} cannot be called. Give the function and its arguments, "
            "profile(solve, A, b), or write a block: with profile() as p: ..."
        )
    with found:
        found.result = finished(f(*arguments, **keywords))
    print(found)
    return found


def finished(result: Any) -> Any:
    """The result, once a device has computed its arrays."""
    for xp in backends.loaded():
        xp.tree_map(_waited, result)
    return result


def _waited(x: Any) -> Any:
    xp = backends.namespace_of(x)
    return x if xp is None or xp.is_traced(x) else xp.synchronize(x)


# --------------------------------------------------------------------------------------------------


class _Call:
    """A call that is under way: its row, and what to ask for its forecast."""

    def __init__(self, row: Row, call: tuple[Any, ...], before: dict[str, float]) -> None:
        self.row, self.call, self.before = row, call, before


class _Recorder(Clock):
    """A clock that keeps each call of a function in a profile, and stands still meanwhile."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile, self.waiting = profile, list[_Call]()
        self.plans: dict[Any, Plan | None] = {}

    def begin(self, f: Any, rule: Any, A: Any, arguments: tuple[Any, ...]) -> Any:
        outer = self.turn(ASIDE)
        row = Row(f.name, expression_of(A), rule.name, depth=len(self.waiting))
        row.within = outer if outer in (PRODUCTS, DERIVATIVES) and not self.waiting else ""
        begun = _Call(row, (f, A, arguments), self.read())
        self.waiting.append(begun)
        self.turn(outer)
        return begun

    def end(self, begun: Any, how: str, result: Any) -> dict[str, float]:
        f, A, arguments = begun.call
        arrays = [x for x in (*A.arrays(), *arguments) if backends.is_array(x)]
        is_traced = any(backends.namespace_of(x).is_traced(x) for x in arrays)
        if not is_traced and any(backends.namespace_of(x).is_on_device(x) for x in arrays):
            finished(result)
        outer = self.turn(ASIDE)
        row, times = begun.row, difference(self.read(), begun.before)
        self.told = times
        row.rule = how
        if not is_traced:
            row.seconds, row.times = sum(times.values()), times
        self.abandon(begun)
        (self.waiting[-1].row.children if self.waiting else self.profile.calls).append(row)
        if not self.waiting and not is_traced:
            plan = self._plan(f, A, arguments, row)
            if plan is not None:
                compare(row, plan)
                self.profile.figures = plan.figures
        self.turn(outer)
        return times

    def abandon(self, begun: Any) -> None:
        del self.waiting[self.waiting.index(begun) :]

    def _plan(self, f: Function, A: Any, arguments: tuple[Any, ...], row: Row) -> Plan | None:
        """What `explain` says of a call, once for all calls that look alike; None where it fails."""
        method = f.method_among(arguments)
        key = row.function, row.expression, row.rule, type(method)
        if key not in self.plans:
            if len(self.plans) >= MOST_PLANS:
                return None
            try:
                self.plans[key] = plan_of(lambda: f._call(A, arguments), compares=False)
            except Exception:  # a forecast is no reason to fail
                self.plans[key] = None
        return self.plans[key]


def compare(row: Row, plan: Plan) -> None:
    """Write the forecasts of a plan beside what was measured: for each call the first of the planned
    ones that is of the same function and operator."""
    row.forecast = plan.cost.seconds
    left = list(plan.children)
    for child in row.children:
        same = [each for each in left if _is_of(child, each)]
        if same:
            left.remove(same[0])
            compare(child, same[0])


def _is_of(row: Row, plan: Plan) -> bool:
    return (row.function, row.expression) == (plan.function, plan.expression)


def merged(rows: list[Row]) -> list[Row]:
    """The rows, equal ones after each other as one."""
    found: list[Row] = []
    for row in rows:
        if found and found[-1]._is_like(row):
            found[-1]._add(row)
        else:
            row.children = merged(row.children)
            found.append(row)
    return found


def _walk(rows: list[Row]) -> Iterator[Row]:
    waiting = list(reversed(rows))
    while waiting:
        row = waiting.pop()
        yield row
        waiting.extend(reversed(row.children))


def _lines(call: Row) -> list[tuple[str, Row]]:
    """The lines of the tree, each with its row."""
    text = draw(call, lambda row: row.label, lambda row: row.children).split("\n")
    return list(zip(text, _walk([call]), strict=True))


def _text(seconds: float | None) -> str:
    return "-" if seconds is None or math.isnan(seconds) else time_text(seconds)
