"""The exit codes, and the errors that lead to them."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..status import Status

SUCCESS = 0  # the answer is right to the tolerance
UNCONVERGED = 1  # there is an answer, written where it was asked for, but it misses the tolerance
USAGE = 2  # the command line makes no sense
BAD_INPUT = 3  # a file cannot be read or written, or what is in it does not fit
NUMERICAL = 4  # no answer can be trusted: singular, not positive definite, NaN, too large
MISSING = 5  # a package is needed that is not installed
INTERRUPTED = 130  # by Ctrl-C: 128 + SIGINT
BROKEN_PIPE = 141  # who read the output has gone: 128 + SIGPIPE

HOPELESS = (Status.BREAKDOWN, Status.NOT_POSITIVE_DEFINITE, Status.SINGULAR, Status.NONFINITE)


class UsageError(Exception):
    """Options that contradict each other, or that nothing goes by the name of."""


class InputError(Exception):
    """A file that cannot be read or written, or that holds something else than it should."""


class NumericalError(Exception):
    """A computation that has no answer."""


def of_status(status: Any) -> int:
    """The exit code of a computation that ended with this status."""
    if not status.is_failure:
        return SUCCESS
    return NUMERICAL if status in HOPELESS else UNCONVERGED


def of_error(error: BaseException) -> int | None:
    """The exit code that an exception leads to; None for one that is a mistake in the program."""
    if isinstance(error, (UsageError, errors.MethodError)):
        return USAGE
    if isinstance(error, (InputError, errors.ShapeError, errors.DtypeError, OSError)):
        return BAD_INPUT
    if isinstance(error, ImportError):
        return MISSING
    if (
        isinstance(error, (NumericalError, errors.ColinearError, ArithmeticError, MemoryError))
        or type(error).__name__ == "LinAlgError"
    ):
        return NUMERICAL
    return USAGE if isinstance(error, ValueError) else None
