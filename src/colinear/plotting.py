"""Pictures, with matplotlib: the history of an iteration, and what the parts of a call cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backends
from .errors import BackendError
from .status import Status, may_read, read_status

if TYPE_CHECKING:
    from .info import Info


def axes_for(caller: str, axes: Any = None) -> Any:
    """The axes, or those of a new figure; an error that says what to install where there can be none."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            f"{caller} draws with matplotlib, which is not installed: pip install 'colinear[plot]'",
            name="matplotlib",
        ) from error
    return pyplot.subplots()[1]


LINE_INCHES = 0.32  # the height of a bar with its label


def plot_costs(
    caller: str, labels: Sequence[str], bars: Mapping[str, Sequence[float]], axes: Any = None
) -> Any:
    """Draw a line for each label with the bars of its seconds, the first kind light, from the top."""
    is_new = axes is None
    axes = axes_for(caller, axes)
    places = np.arange(len(labels))
    for i, (name, seconds) in enumerate(bars.items()):
        shown = np.asarray(seconds, float)
        color, height = ("#9ec5e8", 0.8) if i == 0 else ("#1f5f99", 0.4)
        axes.barh(places, shown, height=height, color=color, label=name)
    axes.set_yticks(places, labels, ha="left", family="monospace")
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(len(labels) - 0.4, -0.6), xlabel="seconds")
    axes.legend(loc="lower right")
    if is_new:
        axes.figure.set_size_inches(9, 1.2 + LINE_INCHES * len(labels))
    # labels begin at one place, so that their indentation shows the tree
    longest = max(map(len, labels), default=0)
    axes.tick_params(axis="y", pad=6.2 * longest)
    if is_new:
        axes.figure.tight_layout()
    return axes


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
    axes = axes_for("Info.plot", axes)
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
