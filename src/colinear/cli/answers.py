"""How a command ends: its answer as lines of text or as one JSON object, and the exit code that
follows from its status or its error."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np

from .. import errors
from ..backends import namespace_of
from ..info import Info
from ..status import Status, combine

SUCCESS = 0  # the answer is right to the tolerance
UNCONVERGED = 1  # there is an answer, written where it was asked for, but it misses the tolerance
USAGE = 2  # the command line makes no sense
BAD_INPUT = 3  # a file cannot be read or written, or what is in it does not fit
NUMERICAL = 4  # no answer can be trusted: singular, not positive definite, NaN, too large
MISSING = 5  # a package is needed that is not installed
INTERRUPTED = 130  # by Ctrl-C: 128 + SIGINT
BROKEN_PIPE = 141  # who read the output has gone: 128 + SIGPIPE

SHOWN = 20  # numbers of a vector that are printed
HOPELESS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.SINGULAR, Status.NONFINITE)


class UsageError(Exception):
    """Options that contradict each other, or that nothing goes by the name of."""


class InputError(Exception):
    """A file that cannot be read or written, or that holds something else than it should."""


# the first that fits counts
CODES_OF_ERRORS: tuple[tuple[Any, int], ...] = (
    (UsageError | errors.MethodError, USAGE),
    (InputError | errors.ShapeError | errors.DtypeError | OSError, BAD_INPUT),
    (ImportError, MISSING),
    (errors.ColinearError | ArithmeticError | MemoryError | np.linalg.LinAlgError, NUMERICAL),
    (ValueError, USAGE),
)


def code_of_status(status: Any) -> int:
    """The exit code of a computation that ended with this status."""
    if not status.is_failure:
        return SUCCESS
    return NUMERICAL if status in HOPELESS else UNCONVERGED


def code_of_error(error: BaseException) -> int | None:
    """The exit code that an exception leads to; None for one that is a mistake in the program."""
    return next((code for kinds, code in CODES_OF_ERRORS if isinstance(error, kinds)), None)


def of_info(info: Info) -> dict[str, Any]:
    """What an `Info` says, as plain values."""
    status = combine([info._status])
    methods = dict.fromkeys(filter(None, _names(info)))
    return {
        "status": status.name,
        "method": ", ".join(methods) or info.rule,
        "rule": info.rule,
        "residual": largest(info.residual),
        "iterations": largest(info.iterations),
        "matvecs": largest(info.matvecs),
        "error": largest(info.error),
    }


def _names(info: Info) -> list[str]:
    return [info.method, *(name for child in info.children for name in _names(child))]


def largest(x: Any) -> Any:
    """The largest of an array of any framework, None for nothing."""
    if x is None:
        return None
    values = host(x)
    return np.max(values).item() if values.size else None


def host(x: Any) -> Any:
    """An array of any framework as NumPy's."""
    xp = namespace_of(x)
    return np.asarray(x if xp is None else xp.to_numpy(x))


def finish(
    options: argparse.Namespace, answer: dict[str, Any], lines: list[str], status: Status
) -> int:
    """Print the answer and give the exit code; what is wrong with it goes to standard error."""
    code = code_of_status(status)
    stream = sys.stderr if getattr(options, "output", None) == "-" else sys.stdout
    if options.json:
        whole = {"command": options.command, **answer, "status": status.name, "exit_code": code}
        print(json.dumps(plain(whole), allow_nan=False))
    else:
        print("\n".join(lines), file=stream)
    if code != SUCCESS:
        complain(f"{status.name}: {status.meaning}. {status.remedy}")
    return code


def complain(message: str, kind: str = "") -> None:
    """One line on standard error."""
    print(f"colinear: {kind}{' '.join(message.split())}", file=sys.stderr, flush=True)


def numbers(values: Any) -> list[str]:
    """The first of a vector's entries, as lines."""
    values = np.asarray(values)
    shown = [f"  {number(v)}" for v in values[:SHOWN]]
    return shown if len(values) <= SHOWN else [*shown, f"  ... and {len(values) - SHOWN} more"]


def number(x: Any) -> str:
    """A number as text, to ten digits."""
    x = complex(x)
    return f"{x.real:.10g}" if x.imag == 0 else f"{x.real:.10g}{x.imag:+.10g}j"


def plain(x: Any) -> Any:
    """Return x as JSON knows it: complex numbers as [real, imaginary], infinities and NaN as strings."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple, np.ndarray)):
        return [plain(value) for value in x]
    if isinstance(x, (complex, np.complexfloating)):
        return [plain(float(x.real)), plain(float(x.imag))]
    if isinstance(x, (float, np.floating)):
        return float(x) if math.isfinite(x) else str(float(x))
    return x.item() if isinstance(x, np.generic) else x
