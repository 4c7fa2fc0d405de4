"""What a computation says of itself, `Info`, and who is told; trees drawn as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import backends
from .plotting import plot_history
from .status import (
    Pending,
    Status,
    combine,
    deliver,
    failed,
    may_read,
    number_text,
    overlook,
    read_status,
    state,
)

# Trees drawn as text, one line per node.


Node = TypeVar("Node")


def draw(
    root: Node, line: Callable[[Node], str], children: Callable[[Node], Sequence[Node]]
) -> str:
    """The tree under `root`, with `line(node)` for each node, joined by box-drawing characters."""
    lines = []
    # node, what stands before its line, what stands before its children's
    waiting = [(root, "", "")]
    while waiting:
        node, before, below = waiting.pop()
        lines.append(before + line(node))
        parts = children(node)
        for i in reversed(range(len(parts))):
            last = i == len(parts) - 1
            waiting.append(
                (parts[i], below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
            )
    return "\n".join(lines)


# What a computation says of itself: `Info`, and who is told.
#
# A method never raises and never prints: it hands its `Info` to `report`. The outermost call of a
# function collects what was reported inside it, by nested calls and by solves applied lazily, and
# settles it once: as the `Info` that the user asked for, as a warning, or as a `ConvergenceError`.


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Info:
    """What is known of an answer; immutable, and a pytree, so that it passes through jit and vmap.

    Attributes
    ----------
    status : Status
        The worst of this computation and its parts; under tracing an integer array.
    converged : bool or array of bool
        Per column where there are several right sides.
    iterations, matvecs : int
        Of iterative methods, with those of the parts.
    residual : float or array
        Relative, true (recomputed at the end): a number for one right side, else per column.
    error : float or array
        An estimate of the error, from stochastic methods.
    history : array
        The residual by iteration, where the method keeps it.
    method, function, rule : str
        What computed it.
    message : str
        More, in words.
    children : tuple of Info
        Of the parts that a rule split the problem into.
    seconds : float
        The time of the call, by the clock; what a device has still to do when it returns is not in
        it. None where the call was compiled.
    times : dict
        The same by part: "dispatch" (finding rules and choosing methods), "factorisation",
        "products", "derivatives" (torch's, told when they are pulled back), "other". None where
        the call was compiled.
    """

    _status: Any
    _converged: Any
    iterations: Any
    matvecs: Any
    residual: Any
    error: Any
    history: Any
    method: str
    function: str
    rule: str
    message: str
    children: tuple[Info, ...]
    # of one run, so no part of the pytree: a compiled program would keep it
    seconds: float | None = None
    times: dict[str, float] | None = None

    def __init__(
        self,
        status: Any = Status.SUCCESS,
        converged: Any = None,
        iterations: Any = None,
        matvecs: Any = None,
        residual: Any = None,
        error: Any = None,
        history: Any = None,
        *,
        method: str = "",
        function: str = "",
        rule: str = "",
        message: str = "",
        children: tuple[Info, ...] = (),
        seconds: float | None = None,
        times: dict[str, float] | None = None,
    ):
        if converged is None and isinstance(status, int):
            converged = status < int(Status.STOPPED)
        values = (
            status,
            converged,
            iterations,
            matvecs,
            residual,
            error,
            history,
            method,
            function,
            rule,
            message,
            children,
            seconds,
            times,
        )
        for name, value in zip(_FIELDS, values):
            object.__setattr__(self, name, value)

    @property
    def status(self) -> Any:
        status = self._status
        if type(status) is Status:
            return status
        if isinstance(status, Pending):
            self.complete(status.read())
            return self._status
        elif isinstance(status, int) or (getattr(status, "shape", None) == () and may_read(status)):
            status = Status(int(status))
        object.__setattr__(self, "_status", status)
        return status

    @property
    def converged(self) -> Any:
        # of an array only if asked for: on a device that is an operation
        if self._converged is None:
            return self.status < int(Status.STOPPED)
        return self._converged

    @property
    def failed(self) -> Any:
        """Whether the status is a failure."""
        return failed(self.status)

    @property
    def is_empty(self) -> bool:
        """Whether it says no more than that nothing failed."""
        is_said = self.method or self.function or self.message or self.children
        numbers = self.iterations, self.matvecs, self.residual, self.error, self.history
        is_counted = any(number is not None for number in numbers)
        return self._status is Status.SUCCESS and not (is_said or is_counted)

    def without_empty_parts(self) -> Info:
        """Itself, rid of the parts that say no more than that nothing failed."""
        if self.children:
            kept = [each.without_empty_parts() for each in self.children if not each.is_empty]
            object.__setattr__(self, "children", tuple(kept))
        return self

    def complete(self, status: Status) -> None:
        """Set a status that was still to be read; what was said of its failure goes if it is
        none."""
        object.__setattr__(self, "_status", status)
        if status is Status.SUCCESS:
            object.__setattr__(self, "message", "")

    def replace(self, **changes: Any) -> Info:
        """A copy with some fields changed."""
        return _make([changes.get(name.lstrip("_"), getattr(self, name)) for name in _FIELDS])

    def plot(self, axes: Any = None) -> Any:
        """Draw the residual of each column by iteration, on a logarithmic axis, with matplotlib.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib Axes
            Its title says the method and the status. Where a rule split the problem, the histories
            of the parts are drawn.

        Examples
        --------
        >>> import colinear as co, numpy as np
        >>> x, info = co.solve(np.diag([1.0, 2.0, 3.0]), np.ones(3), co.CG(), info=True)
        >>> info.plot().get_title()
        'solve by CG: SUCCESS'
        """
        return plot_history(self, axes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, ([getattr(self, name) for name in _FIELDS],)

    def __repr__(self) -> str:
        return draw(self, _line, lambda info: info.children)


_LEAVES = ("_status", "_converged", "iterations", "matvecs", "residual", "error", "history")
_STATIC = ("method", "function", "rule", "message")
_FIELDS = (*_LEAVES, *_STATIC, "children", "seconds", "times")


def _make(values: Iterable[Any]) -> Info:
    info = object.__new__(Info)
    for name, value in zip(_FIELDS, values):
        object.__setattr__(info, name, value)
    return info


def _flatten(info: Info) -> tuple[tuple[Any, ...], Any]:
    """The leaves that are there (torch's pytrees would count None as one) and the names to put
    them back by."""
    if isinstance(info._status, Pending):
        object.__setattr__(info, "_status", info._status.read())
    present = tuple(name for name in _LEAVES if getattr(info, name) is not None)
    # An IntEnum is no array type to JAX; a plain int is.
    leaves = [
        int(v) if isinstance(v, Status) else v for v in (getattr(info, name) for name in present)
    ]
    return (*leaves, *info.children), (present, tuple(getattr(info, name) for name in _STATIC))


def _unflatten(structure: Any, leaves: Any) -> Info:
    present, static = structure
    leaves = tuple(leaves)
    values = dict(zip(present, leaves))
    return _make(
        [*(values.get(name) for name in _LEAVES), *static, leaves[len(present) :], None, None]
    )


backends.on_load(lambda xp: xp.register_pytree(Info, _flatten, _unflatten))


def _line(info: Info) -> str:
    name = ": ".join(part for part in (info.function, info.rule) if part) or "Info"
    if info.method:
        name += f" by {info.method}"
    status = read_status(info)
    parts = [f"{name}  {status.name if isinstance(status, Status) else 'traced'}"]
    for field in ("residual", "error", "iterations", "matvecs"):
        if (value := getattr(info, field)) is not None:
            parts.append(f"{field} {number_text(value)}")
    if info.message:
        parts.append(info.message)
    return "  ".join(parts)


# --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """A call of a function that is under way.

    Attributes
    ----------
    reports : list of Info
        What was reported in it so far.
    is_detailed : bool
        Whether nested calls make an Info each, because `info=True` was asked for.
    planner : Planner or None
        Of `explain`, to which nested calls go instead of being run.
    is_settled : bool
        Whether a call reads at its end what is put off until then; not so where reports are
        recorded outside of all calls.
    """

    reports: list[Info]
    is_detailed: bool = False
    planner: Any = None
    is_settled: bool = True


def planning() -> bool:
    """Whether `explain` is at work, so that only the nested calls of a function matter and no
    result does."""
    return state.current is not None and state.current.planner is not None


def is_detailed() -> bool:
    """Whether an Info was asked for, so that figures are computed which the answer does not
    need."""
    return state.current is not None and state.current.is_detailed


def report(info: Info, result: Any = None) -> Any:
    """Hand in the `Info` of a method: to the call of a function that is under way, else as a
    warning if it is a failure. Return the result, to which a warning of a compiled program is
    tied."""
    current = state.current
    if current is None:
        return deliver(info, "warn", result)
    current.reports.append(info)
    return result


def reported() -> list[Info]:
    """The reports made so far in the call that is under way."""
    return [] if state.current is None else state.current.reports


class recording:
    """Collect the reports made inside, instead of passing them on; `detailed`: as much of them as
    was asked for outside.

    For code that runs others' operators where their reports must not leave: the body of a traced
    loop (whose tracers mean nothing outside it), or an attempt whose failure is expected.
    """

    __slots__ = ("detailed", "outer", "reports")

    def __init__(self, detailed: bool = False) -> None:
        self.detailed = detailed

    def __enter__(self) -> list[Info]:
        self.reports: list[Info] = []
        self.outer = outer = state.current
        if not planning():  # a planner goes on planning, and takes no reports
            is_settled = outer is not None and outer.is_settled
            state.current = Scope(self.reports, self.detailed and is_detailed(), None, is_settled)
        return self.reports

    def __exit__(self, failure: Any, *_: Any) -> None:
        state.current = self.outer
        if failure is None and self.reports:
            overlook([info._status for info in self.reports])  # those that are not passed on


def labelled(label: str, f: Any, *arguments: Any) -> Any:
    """`f(*arguments)` for one part of a composition: a failure that is reported inside names the
    part."""
    outer = state.current
    if outer is None or outer.planner is not None:
        return f(*arguments)
    state.current = inner = Scope([], outer.is_detailed, None, outer.is_settled)
    try:
        return f(*arguments)
    finally:
        state.current = outer
        for info in inner.reports:
            is_fine = failed(info._status) is False
            outer.reports.append(
                info if is_fine else info.replace(message=f"{label}; {info.message}".rstrip("; "))
            )


def summarise(
    reports: list[Info],
    function: str,
    rule: str,
    one_column: bool = False,
    times: dict[str, float] | None = None,
    status: Any = None,
) -> Info:
    """One `Info` for a call, from what was reported inside it.

    A single report by the rule or the base case itself describes the whole: its residual is the
    whole's. Everything else is a part. Counts are of everything, the status is the worst.
    `one_column`: whether the answer has no axis of columns, so that what methods report for each
    column is a number. `status`: the worst, if it is known.
    """
    own = [info for info in reports if not info.function]
    whole = own[0] if len(own) == 1 else None
    parts = () if whole and len(reports) == 1 else tuple(i for i in reports if i is not whole)
    # what a rule passes on to one part keeps that part's figures
    only = whole or (parts[0] if len(parts) == 1 else None)
    if only:
        figures: Any = only._converged, only.residual, only.error
        figures = map(_only_column, figures) if one_column else figures
    else:
        figures = _all([info._converged for info in reports]), None, None
    converged, residual, error = figures
    if len(reports) == 1:
        iterations, matvecs = reports[0].iterations, reports[0].matvecs
    else:
        iterations = total([info.iterations for info in reports])
        matvecs = total([info.matvecs for info in reports])
    return Info(
        status=combine([info._status for info in reports]) if status is None else status,
        converged=converged,
        iterations=iterations,
        matvecs=matvecs,
        residual=residual,
        error=error,
        history=only.history if only else None,
        method=whole.method if whole else "",
        message=whole.message if whole else "",
        function=function,
        rule=rule,
        children=(*whole.children, *parts) if whole else parts,
        seconds=None if times is None else sum(times.values()),
        times=times,
    )


def _only_column(x: Any) -> Any:
    """What was reported for each column, where there is one: without that axis."""
    if not getattr(x, "ndim", 0) or x.shape[-1] != 1:
        return x
    return x[0] if x.ndim == 1 else x[..., 0]  # NumPy's first is a number, its second an array


def worst_status(infos: Iterable[Info]) -> Any:
    """The worst status of several computations: see `combine`."""
    return combine([info._status for info in infos])


def counts(reports: Sequence[Info]) -> dict[str, Any]:
    """The iterations and the products of all reports, as fields of an `Info`."""
    names = "iterations", "matvecs"
    return {name: total(getattr(info, name) for info in reports) for name in names}


def total(counts: Iterable[Any]) -> Any:
    total: Any = None
    for count in counts:
        if count is not None:
            total = count if total is None else total + count
    return total


def _all(flags: Sequence[Any]) -> Any:
    """Whether all have converged; None if that is to be seen by the status."""
    if any(flag is None for flag in flags):
        return None
    result: Any = True
    for flag in flags:
        xp = backends.namespace_of(flag)
        flag = flag if xp is None else xp.all(flag)
        result = flag if result is True else result & flag
    return result
