"""Pictures, with matplotlib: the history of an iteration, and what the parts of a call cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backends
from .errors import BackendError
from .status import Status, may_read, read_status

if TYPE_CHECKING:
    from .info import Info

MOST_NAMED = 10  # columns that a legend names


def plot_history(info: Info, axes: Any = None) -> Any:
    """The residuals of `info.history` by iteration, a line for each column: see `Info.plot`."""
    recorded = list(_with_history(info))
    if not recorded:
        raise ValueError(
            "Info.plot: there is no history of residuals here (method "
            f"{info.method or 'unknown'}). Iterative methods keep one where "
            "info=True asks for it: x, info = solve(A, b, CG(), info=True)."
        )
    if not all(may_read(each.history) for each in recorded):
        raise BackendError(
            "Info.plot: the values are traced, so there is nothing to draw yet. Return the Info "
            "from the transformed function and plot it there."
        )
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "Info.plot draws with matplotlib, which is not installed: pip install 'colinear[plot]'",
            name="matplotlib",
        ) from error
    if axes is None:
        axes = pyplot.subplots()[1]
    lines = [line for each in recorded for line in _curves(each, len(recorded) > 1)]
    for label, residuals in lines:
        axes.plot(residuals, label=label)
    if any((residuals > 0).any() for _, residuals in lines):
        axes.set_yscale("log")
    if 1 < len(lines) <= MOST_NAMED:
        axes.legend()
    axes.set(xlabel="iteration", ylabel="relative residual", title=_title_of(info, recorded))
    return axes


def _with_history(info: Info) -> Iterator[Info]:
    """The Info itself if it has a history, else those of its parts that do."""
    if info.history is not None:
        yield info
        return
    for child in info.children:
        yield from _with_history(child)


def _curves(info: Info, is_part: bool) -> Iterator[tuple[str, Any]]:
    """A label and the residuals of each column; zeros, which a logarithm has no place for, and
    what was not recorded are NaN."""
    xp: Any = backends.namespace_of(info.history)
    history = np.asarray(xp.to_numpy(info.history), float)
    name = " ".join(filter(None, (info.function, info.method))) if is_part else ""
    for column in np.ndindex(history.shape[1:]):
        residuals = history[(slice(None), *column)]
        recorded = np.flatnonzero(~np.isnan(residuals))
        residuals = residuals[: recorded[-1] + 1] if recorded.size else residuals[:0]
        which = f"column {column[0] if len(column) == 1 else column}" if column else ""
        label = ", ".join(filter(None, (name, which)))
        yield label, np.where(residuals > 0, residuals, np.nan)


def _title_of(info: Info, recorded: list[Info]) -> str:
    methods = ", ".join(dict.fromkeys(each.method for each in recorded if each.method))
    status = read_status(info)
    who = " by ".join(filter(None, (info.function, methods)))
    return f"{who}: {status.name if isinstance(status, Status) else 'traced'}".lstrip(": ")
